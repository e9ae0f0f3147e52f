"""Runs every part of the benchmarks, or those named by ``--only``; each writes ``.hintloop/bench/<part>.json``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    """Run the parts one after another; the exit code of the first that failed, or 0."""
    parts = sorted(path.parent.name for path in HERE.glob("*/__main__.py"))
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", metavar="PART", help=f"comma-separated: {', '.join(parts)}")
    options, rest = parser.parse_known_args()
    chosen = options.only.split(",") if options.only else parts
    for part in chosen:
        if part not in parts:
            parser.error(f"there is no part {part!r}; parts are: {', '.join(parts)}")
    failed = 0
    for part in chosen:
        code = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{part}", *rest], cwd=HERE.parent, check=False
        ).returncode
        failed = failed or code
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
