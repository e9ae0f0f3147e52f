"""Prints `name==version` of everything that the packages of this repository require, as installed here.

With a version of Python as its argument, of what they require under that one.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "hintloop-contract[scoring,tracing]",
    "hintloop-console",
    "hintloop-judge",
    "hintloop-rollout-proxy",
    "hintloop-teacher",
    "hintloop-trainer",
    "hintloop",
    "setuptools",
)


def _own() -> dict[str, dict[str, list[str]]]:
    """Requirements of this repository's packages, by name and extra ("" for none).

    From the packages' own files: what was installed from a clone knows what they required at that time.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for file in (ROOT / "contract", ROOT / "cli", *(ROOT / "services").iterdir()):
        if (file / "pyproject.toml").is_file():
            project = tomllib.loads((file / "pyproject.toml").read_text())["project"]
            extras = project.get("optional-dependencies", {})
            found[canonicalize_name(project["name"])] = {"": project["dependencies"], **extras}
    return found


def _version(name: str) -> str:
    """As installed, or where only another Python needs it, as pinned."""
    try:
        return distribution(name).version
    except PackageNotFoundError:
        pins = (line.partition("==") for line in (ROOT / "constraints/services.txt").read_text().splitlines())
        return {canonicalize_name(pinned): version for pinned, _, version in pins}[canonicalize_name(name)]


def _required_by(name: str, extras: Iterable[str], python: str) -> list[Requirement]:
    try:
        lines = [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []
    places = [{"extra": extra, "python_full_version": python} for extra in list(extras) or [""]]
    return [line for line in lines if not line.marker or any(line.marker.evaluate(place) for place in places)]


def required(packages: Iterable[str] = PACKAGES, python: str = platform.python_version()) -> dict[str, str]:
    """Versions by name, without our own packages, for a version of Python."""
    own = _own()
    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in packages]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        if name in own:
            waiting += [Requirement(line) for extra in ("", *wanted.extras) for line in own[name][extra]]
        else:
            found[name] = _version(name)
            waiting += _required_by(name, wanted.extras, python)
    return found


if __name__ == "__main__":
    for name, version in sorted(required(PACKAGES, *sys.argv[1:]).items()):
        print(f"{name}=={version}")
