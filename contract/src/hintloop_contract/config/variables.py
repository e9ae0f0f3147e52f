"""Environment variables, each given as it is or, under its name with `_FILE`, by a file that holds its value.

The second is how secrets come in where an environment is shown to people (`docker inspect`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from hintloop_contract.errors import ConfigError

FILE_SUFFIX = "_FILE"


def read_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """The value of ``name``, or what the file that ``name`` + `_FILE` names holds; ``None`` where neither is set.

    Raises:
        ConfigError: both are set, or the file cannot be read.
    """
    path = environ.get(name + FILE_SUFFIX)
    if path is None:
        return environ.get(name)
    if name in environ:
        raise ConfigError(f"environment: {name} and {name}{FILE_SUFFIX} are both set; unset one of them")
    return _content(name + FILE_SUFFIX, path)


def key_variables(environ: Mapping[str, str], prefix: str, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """``(section.key, value)`` of every ``<prefix><SECTION>__<KEY>``, sorted by variable.

    A variable that ends in `_FILE` and is no key of ``known`` itself gives the key before that; an empty file gives
    none, so that a secret may be mounted and left empty.

    Raises:
        ConfigError: a key is given both ways, or a file cannot be read.
    """
    for name, text in sorted(environ.items()):
        section, separator, key = name.removeprefix(prefix).partition("__")
        if not name.startswith(prefix) or not separator:
            continue
        path = f"{section.lower()}.{key.lower()}"
        stem = path.removesuffix(FILE_SUFFIX.lower())
        if stem == path or path in known:
            yield path, text
        elif value := read_variable(name.removesuffix(FILE_SUFFIX), environ):
            yield stem, value


def _content(name: str, path: str) -> str:
    try:
        # What an editor or `echo` leaves at the end is no part of a secret.
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"environment: {name} names {path!r}, which cannot be read: {error}") from error
