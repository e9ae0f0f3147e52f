"""Command-line arguments that every service shares."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hintloop_contract.config.loading import LoadedConfig, load_config
from hintloop_contract.errors import ConfigError

#: Files that stand for `--config` and `--settings` where those are not given, separated as in `PATH`.
CONFIG_VARIABLE, SETTINGS_VARIABLE = "HINTLOOP_CONFIG", "HINTLOOP_SETTINGS"


def parse_arguments(prog: str, argv: Sequence[str] | None = None) -> LoadedConfig:
    """Read ``--config F [--config OVERLAY] [--settings F] [--set section.key=value]`` and resolve.

    Where no ``--config`` is given, the files of `HINTLOOP_CONFIG` are read, and so with `HINTLOOP_SETTINGS`. A wrong
    configuration ends the process with exit code 2 and every problem on standard error.
    """
    parser = make_parser(prog)
    return resolved(parser, parser.parse_args(argv))


def make_parser(prog: str) -> argparse.ArgumentParser:
    """A parser of those arguments, for services that add their own."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument(
        "--config",
        "--overlay",
        dest="files",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="config.toml, then overlays; the last one wins",
    )
    parser.add_argument("--settings", action="append", type=Path, default=[], metavar="FILE", help="settings.json")
    parser.add_argument(
        "--set",
        dest="flags",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="one key, above all files and the environment",
    )
    return parser


def resolved(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> LoadedConfig:
    """The configuration that the parsed ``arguments`` name; a wrong one ends the process with exit code 2."""
    files = arguments.files or files_of(CONFIG_VARIABLE)
    settings = arguments.settings or files_of(SETTINGS_VARIABLE)
    try:
        return load_config(files, settings=settings, flags=flags_of(arguments.flags))
    except ConfigError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def files_of(variable: str) -> list[Path]:
    """The files that an environment variable names, separated as in `PATH`."""
    return [Path(word) for word in os.environ.get(variable, "").split(os.pathsep) if word]


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """``section.key`` to text, of ``SECTION.KEY=VALUE`` words; the last of several wins.

    Raises:
        ConfigError: a word has no ``=``.
    """
    flags = {}
    for word in words:
        path, separator, value = word.partition("=")
        if not separator:
            raise ConfigError(f"--set {word!r} must be SECTION.KEY=VALUE")
        flags[path.strip()] = value
    return flags
