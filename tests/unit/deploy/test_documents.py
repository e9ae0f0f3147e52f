"""What the pages on deployment name is there: files, services, configuration keys, values, variables, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hintloop.commands import app
from hintloop_contract.config.schema import Config

from .conftest import DEPLOY, ROOT

PAGES = [ROOT / "docs/operations.md", DEPLOY / "README.md", DEPLOY / "secrets/README.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
SERVICES = set(yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"])
VALUES = yaml.safe_load((DEPLOY / "helm/hintloop/values.yaml").read_text())
#: Options of `docker compose` and its commands that are followed by a value.
WITH_VALUE = {"-f", "--entrypoint", "--name", "--scale", "--profile", "--env-file"}
#: Of others: redis-cli's.
FOREIGN = {"REDISCLI_AUTH"}


def quoted(page: Path) -> list[str]:
    """What stands between backticks, blocks left out."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `docker compose …`, in a block or between backticks."""
    text = page.read_text().replace("\\\n", " ")
    for line in [*re.findall(r"^\$ (.*)$", text, re.MULTILINE), *quoted(page)]:
        if "docker compose " in line:
            words = shlex.split(line.split("docker compose ", 1)[1], comments=True)
            end = next((index for index, word in enumerate(words) if word in ("&&", "|")), len(words))
            yield [word for word in words[:end] if not re.match(r"[<>…]", word)]


def named_services(words: list[str]) -> list[str]:
    plain, skip = [], False
    for word in words:
        if not skip and not word.startswith("-"):
            plain.append(word)
        skip = not skip and word in WITH_VALUE
    match plain:
        case ["up" | "build" | "push" | "stop" | "restart" | "logs" | "down", *services]:
            return services
        case ["run" | "exec", service, *_]:
            return [service]
        case ["cp", source, _]:
            return [source.split(":")[0]]
        case []:
            return []
    raise AssertionError(f"docker compose {' '.join(words)}: not understood")


def path_in(tree: Any, names: list[str]) -> bool:
    for name in names:
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def config_has(section: str, key: str) -> bool:
    field = Config.model_fields.get(section)
    return field is not None and key in getattr(field.annotation, "model_fields", {})


@each_page
def test_files_are_there(page: Path) -> None:
    for text in quoted(page):
        path = text.split(" ")[0]
        if not re.fullmatch(r"[\w.-]+/[\w./-]*|[\w-]+\.(md|yml|sh|cfg|py|toml|yaml)", path) or path == text.upper():
            continue
        places = (ROOT, DEPLOY, page.parent, DEPLOY / "prometheus", DEPLOY / "helm/hintloop", DEPLOY / "config/own")
        tests = [file.name for file in (ROOT / "tests").rglob(path)] if "/" not in path else []
        made = {"compose.override.yaml", "weights/", "weights/current", "config.toml"}
        assert tests or path in made or any((place / path).exists() for place in places), text


@each_page
def test_services_are_there(page: Path) -> None:
    for words in commands(page):
        assert set(named_services(words)) <= SERVICES, words


@each_page
def test_keys_are_there(page: Path) -> None:
    for text in quoted(page):
        for name in re.findall(r"(?<![\w./-])([a-z]\w*(?:\.[a-z]\w*)+)(?![\w./(-])", text):
            section, *rest = name.split(".")
            if section in Config.model_fields or section in VALUES:
                assert (len(rest) == 1 and config_has(section, rest[0])) or path_in(VALUES, [section, *rest]), name


@each_page
def test_variables_are_there(page: Path) -> None:
    known = (DEPLOY / "docker-compose.yml").read_text() + (DEPLOY / "trainer-images.yml").read_text()
    for text in quoted(page):
        for name in re.findall(r"(?<![\w${])([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w*])", text):
            assert name in FOREIGN or f"${{{name}" in known, name


@each_page
def test_commands_are_there(page: Path) -> None:
    ours = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for text in [*quoted(page), *re.findall(r"^\$ (.*)$", page.read_text(), re.MULTILINE)]:
        for name in re.findall(r"(?:^|run --rm |-- )hintloop ([a-z]+)", text):
            assert name in ours, text
        for name in re.findall(r"^make ([\w-]+)", text):
            assert name in targets, text


def test_something_was_looked_at() -> None:
    page = PAGES[0]
    assert len(list(commands(page))) > 10
    assert {service for words in commands(page) for service in named_services(words)} >= {
        "trainer",
        "redis",
        "hintloop",
    }


@each_page
def test_alerts_are_there(page: Path) -> None:
    alerts = re.findall(r"alert: (\w+)", (DEPLOY / "prometheus/rules/alerts.yml").read_text())
    assert set(re.findall(r"`(Hintloop\w+)`", page.read_text())) <= set(alerts)
