"""Prints `name==version` of everything that the packages of this repository require, as installed here."""

from __future__ import annotations

from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def required() -> dict[str, str]:
    """Versions by name, without our own packages."""
    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in PACKAGES]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        there = distribution(name)
        if not name.startswith("hintloop"):
            found[name] = there.version
        for line in there.requires or ():
            requirement = Requirement(line)
            extras = wanted.extras or {""}
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(requirement)
    return found


if __name__ == "__main__":
    for name, version in sorted(required().items()):
        print(f"{name}=={version}")
