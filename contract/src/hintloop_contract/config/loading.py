"""Loading and merging configuration. Owns precedence and error messages; the keys stand in `schema`.

Precedence: flags > environment > overlays (last first) > settings.json > config.toml > defaults; lists replace.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from hintloop_contract.config.schema import Config
from hintloop_contract.config.variables import FILE_SUFFIX, key_variables, read_variable
from hintloop_contract.errors import ConfigError
from hintloop_contract.logs import MASK

ENV_PREFIX = "HINTLOOP_"
#: How alike a key must be to an unknown one to be what was meant (1: the same), and what the same section adds to it.
ALIKE, SAME_SECTION = 0.65, 0.15
#: What the engines' own launchers read, named as a key with one underscore would be.
_OF_ENGINES = frozenset({"HINTLOOP_LORA_RANK"})
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}

Layer = tuple[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A resolved configuration, where each ``section.key`` came from, and the directory of its first file."""

    config: Config
    origins: dict[str, str]
    directory: Path

    def rows(self) -> list[tuple[str, str, str]]:
        """``(section.key, value as JSON, origin)`` of every key, secrets masked."""
        rows = []
        for section in _SECTIONS:
            values: BaseModel = getattr(self.config, section)
            for key in type(values).model_fields:
                path = f"{section}.{key}"
                rows.append((path, _shown(getattr(values, key)), self.origins.get(path, "default")))
        return rows


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return json.dumps(MASK) if value.get_secret_value() else '""'
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        return "{" + ", ".join(f"{json.dumps(name)}: {_shown(getattr(value, name))}" for name in names) + "}"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def load_config(
    files: Sequence[Path] = (),
    *,
    settings: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Resolve a configuration.

    Args:
        files: the first is config.toml, the others overlays, the last one winning.
        settings: settings.json files.
        environ: environment (``os.environ`` by default), ``HINTLOOP_<SECTION>__<KEY>``; the same with ``_FILE`` at its
            end names a file that holds the value.
        flags: ``section.key`` to text.

    Raises:
        ConfigError: a file is missing or unreadable, or a key or value is wrong; all of them are named at once.
    """
    environ = os.environ if environ is None else environ
    layers: list[Layer] = [_file_layer(path, environ) for path in [*files[:1], *settings, *files[1:]]]
    layers.append(("environment", _nested(_from_environment(environ), "environment variable")))
    layers.append(("flag", _nested((flags or {}).items(), "flag")))
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    problems: list[str] = []
    for origin, sections in layers:
        for section, values in sections.items():
            problems += _unknown(origin, section, values)
            for key, value in values.items():
                merged.setdefault(section, {})[key] = value
                origins[f"{section}.{key}"] = origin
    if problems:
        raise ConfigError("\n".join(problems))
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explained(error, origins))) from None
    directory = Path(files[0]).resolve().parent if files else Path.cwd()
    return LoadedConfig(config, origins, directory)


def _file_layer(path: Path, environ: Mapping[str, str]) -> Layer:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {str(path)!r} cannot be read: {error}") from error
    try:
        data = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"configuration file {str(path)!r} is not valid: {error}") from error
    except RecursionError:
        raise ConfigError(f"configuration file {str(path)!r} is not valid: it nests too deep") from None
    if not isinstance(data, dict):
        raise ConfigError(f"configuration file {str(path)!r} must hold sections, found {type(data).__name__}")
    for section, values in data.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: {section!r} stands outside a section; move it into one of {', '.join(_SECTIONS)}"
            )
        for key, value in values.items():
            values[key] = _substituted(value, f"{path}: {section}.{key}", environ)
    return str(path), data


def _substituted(value: Any, where: str, environ: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_substituted(item, where, environ) for item in value]
    if isinstance(value, dict):
        return {name: _substituted(item, f"{where}.{name}", environ) for name, item in value.items()}
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        found = read_variable(name, environ)
        if found is None:
            raise ConfigError(f"{where}: environment variable {name} is not set; set it or write the value")
        return found

    return _VARIABLE.sub(replace, value)


def _from_environment(environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    known = {f"{section}.{key}" for section, model in _SECTIONS.items() for key in model.model_fields}
    meant = {f"{ENV_PREFIX}{path.replace('.', '_')}".upper(): path for path in known}
    wrong = []
    for name in sorted(environ.keys() - _OF_ENGINES):
        stem = name if name in meant else name.removesuffix(FILE_SUFFIX)
        if stem in meant:
            right = f"{ENV_PREFIX}{meant[stem].replace('.', '__')}".upper() + name[len(stem) :]
            wrong.append(f"environment: {name} is read by nothing; two underscores follow the section: {right}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return key_variables(environ, ENV_PREFIX, known)


def _nested(items: Iterable[tuple[str, str]], kind: str) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for path, text in items:
        section, separator, key = path.partition(".")
        if not separator:
            raise ConfigError(f"{kind} {path!r} must name section.key")
        sections.setdefault(section, {})[key] = _parsed(text)
    return sections


def _parsed(text: str) -> Any:
    """Lists, tables and null are written as JSON; everything else is left for the field's own type to read."""
    if text.strip() == "null":
        return None
    if text.lstrip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _unknown(origin: str, section: str, values: Mapping[str, Any]) -> list[str]:
    model = _SECTIONS.get(section)
    if model is None:
        return [f"{origin}: unknown section {section!r}{_nearest(section, _SECTIONS)}"]
    problems = []
    for key in values:
        path = f"{section}.{key}"
        if key in model.model_fields:
            continue
        problems.append(f"{origin}: unknown key {path!r}{_likeliest(section, key)}")
    return problems


def _likeliest(section: str, key: str) -> str:
    """The key that was meant: the one of that name elsewhere, else the most alike, rather in this section."""

    def likeness(place: tuple[str, str]) -> float:
        own, name = place[0] == section, place[1]
        alike = difflib.SequenceMatcher(None, key.lower(), name).ratio()
        return 2.0 if name == key else alike + SAME_SECTION * own

    best = max(((s, name) for s, model in _SECTIONS.items() for name in model.model_fields), key=likeness)
    return f"; did you mean {'.'.join(best)!r}?" if likeness(best) >= ALIKE else ""


def _nearest(name: str, candidates: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def _explained(error: ValidationError, origins: Mapping[str, str]) -> list[str]:
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"][:2])
        message = item["msg"].removeprefix("Value error, ")
        if not path:
            lines.append(message)
            continue
        inside = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"][2:])
        if item["type"] == "extra_forbidden":
            near = _nearest(str(item["loc"][-1]), _keys_at(item["loc"][:-1]))
            lines.append(f"{_origin(path, origins)}: unknown key {path + inside!r}{near}")
            continue
        given = item.get("input")
        secret = isinstance(given, SecretStr) or _is_secret(path)
        shown = "" if secret or isinstance(given, dict) else f" = {given!r}"
        shown = re.sub(r"//[^/]*@", f"//{MASK}@", shown)
        lines.append(f"{_origin(path, origins)}: {path}{inside}{shown}: {message}")
    return lines


def _is_secret(path: str) -> bool:
    section, _, key = path.partition(".")
    field = _SECTIONS[section].model_fields.get(key) if section in _SECTIONS else None
    return field is not None and _holds_secret(field.annotation)


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(_holds_secret(field.annotation) for field in kind.model_fields.values())
    return kind is SecretStr or any(_holds_secret(inner) for inner in get_args(kind))


def _origin(path: str, origins: Mapping[str, str]) -> str:
    """Where a key came from; of a whole section, where its keys did."""
    within = dict.fromkeys(origin for key, origin in origins.items() if key == path or key.startswith(f"{path}."))
    return ", ".join(within) or "default"


def _keys_at(place: Sequence[int | str]) -> list[str]:
    """Keys of the table at ``place`` in the schema; none where a table of free names stands."""
    found: Any = Config
    for part in place:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(str(part))
            found = field.annotation if field else None
        else:
            inner = get_args(found)  # of a list its items, of a table its values
            found = inner[-1] if inner else None
    return list(found.model_fields) if isinstance(found, type) and issubclass(found, BaseModel) else []
