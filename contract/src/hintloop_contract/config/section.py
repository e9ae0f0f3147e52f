"""What every section of the configuration is built from: its base class, number types, address checks."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Section(BaseModel):
    """Base of every section: unknown keys are refused, attributes' docstrings are the documentation."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True)


def http_address(value: str) -> str:
    """Check an ``http(s)://host[:port][/path]`` address and strip its trailing slash."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not an http(s) address; write it as http://host:port")
    return value.rstrip("/")
