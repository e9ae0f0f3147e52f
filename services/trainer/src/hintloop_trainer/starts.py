"""Versions under which the weights that a run begins with were released.

A run that is killed before its first checkpoint leaves no other trace of them. The next one begins with the same
weights, so samples that were made by them descend from its own.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from hintloop_trainer import durable
from hintloop_trainer.lineage import Lineage

FILE = "versions.json"


class Start(msgspec.Struct):
    """Weights by their SHA-256, and all versions that they were released under."""

    weights_hash: str
    versions: list[int]


def read(root: Path) -> Start:
    """What the last run noted; nothing when it noted nothing that can be read."""
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=Start)
    except (OSError, msgspec.MsgspecError):
        return Start("", [])


def note(root: Path, weights_hash: str, version: int, step: int, lineage: Lineage) -> None:
    """Note, durably, that ``version`` is about to be released; ``lineage`` gets those of the same weights before it."""
    known = read(root)
    earlier = known.versions if known.weights_hash == weights_hash else []
    for before in earlier:
        if (lineage.current or 0) < before < version:
            lineage.release(before, step)
    root.mkdir(parents=True, exist_ok=True)
    durable.write(root / FILE, msgspec.json.encode(Start(weights_hash, [*earlier, version])))
