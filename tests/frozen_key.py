"""A pytest plugin that takes one configuration key's effect away: whoever reads it finds its default.

``pytest -p tests.frozen_key --frozen-key SECTION.KEY``: a test that observes the key's effect then fails. A ``*``
stands for the name or place of a table inside a section, as in ``prm.rules.tools.*.ignore``.
"""

from __future__ import annotations

import types
from typing import Any, get_args

import pytest
from hintloop_contract.config import Config
from pydantic import BaseModel


def sections_of(model: type[BaseModel], path: str = "") -> dict[str, tuple[type[BaseModel], str]]:
    """Every key under ``model``: its path, and the class and attribute that hold it."""
    found: dict[str, tuple[type[BaseModel], str]] = {}
    for name, field in model.model_fields.items():
        here = f"{path}{name}"
        inner = _table_in(field.annotation)
        if inner is None:
            found[here] = (model, name)
            continue
        if inner is not field.annotation:
            found[here] = (model, name)
        stars = "" if inner is field.annotation else ".*"
        found |= sections_of(inner, f"{here}{stars}.")
    return found


def _table_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a key is, or is a list or table of; ``None`` for plain values."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    inner = get_args(annotation)
    return _table_in(inner[-1]) if inner and isinstance(inner[-1], type) else None


def freeze(path: str) -> None:
    """Let every instance show the default of the key at ``path``."""
    owner, name = sections_of(Config)[path]
    field = owner.model_fields[name]
    setattr(owner, name, property(lambda _: field.get_default(call_default_factory=True)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frozen-key", help="key whose value nobody gets to see")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--frozen-key")
    if path:
        freeze(path)
