"""Command-line arguments that every service shares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hintloop_contract.config.loading import LoadedConfig, load_config
from hintloop_contract.errors import ConfigError


def parse_arguments(prog: str, argv: Sequence[str] | None = None) -> LoadedConfig:
    """Read ``--config F [--config OVERLAY] [--settings F] [--set section.key=value]`` and resolve.

    A wrong configuration ends the process with exit code 2 and every problem on standard error.
    """
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--config", "--overlay", dest="files", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--settings", action="append", type=Path, default=[], metavar="FILE")
    parser.add_argument("--set", dest="flags", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args(argv)
    flags = {}
    for flag in arguments.flags:
        path, separator, value = flag.partition("=")
        if not separator:
            parser.error(f"--set {flag!r} must be SECTION.KEY=VALUE")
        flags[path] = value
    try:
        return load_config(arguments.files, settings=arguments.settings, flags=flags)
    except ConfigError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
