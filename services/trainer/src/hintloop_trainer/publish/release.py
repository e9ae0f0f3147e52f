"""A release: weights with their version, and the note beside them that says what the probe scores under them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hintloop_contract.config.lora import LoraSection
from hintloop_contract.ids import adapter_name

#: Written into a version's directory before an engine is given it: the way back after a restart.
NOTE = "hintloop_release.json"
#: Link in the weights directory to the released version.
CURRENT = "current"
#: Makes a directory one of a PEFT adapter instead of weights.
ADAPTER_CONFIG = "adapter_config.json"
#: Where an adapter's merged weights stand beside the versions while the release gate looks at them.
CANDIDATE = ".candidate"


@dataclass(frozen=True, slots=True)
class Release:
    """Weights or an adapter with their version, and what the trainer says of the probe under them."""

    version: int
    directory: Path
    """A Hugging Face directory, or that of a PEFT adapter."""
    probe_ids: list[int]
    probe_scores: list[float]
    """``[len(probe_ids) - 1]``, nats, at temperature 1."""
    trained: list[str] = field(default_factory=list)
    """Turns in these weights that no durable checkpoint holds yet, in the order trained."""

    @property
    def adapter(self) -> str | None:
        """The name under which engines serve it, when it is an adapter."""
        return adapter_name(self.version) if (self.directory / ADAPTER_CONFIG).is_file() else None


class Note(msgspec.Struct):
    """The part of a release that is not in its weights."""

    version: int
    probe_ids: list[int]
    probe_scores: list[float]
    trained: list[str] = []
    """As :attr:`Release.trained`: who goes back to these weights must not train them again."""


def write_note(release: Release) -> None:
    """Put the note into the release's directory, whole or not at all."""
    aside = release.directory / f".{NOTE}.partial"
    note = Note(release.version, release.probe_ids, release.probe_scores, release.trained)
    aside.write_bytes(msgspec.json.encode(note))
    aside.rename(release.directory / NOTE)


def read_note(directory: Path) -> Note | None:
    """The note in a version's directory; ``None`` when there is none that can be read."""
    try:
        return msgspec.json.decode((directory / NOTE).read_bytes(), type=Note)
    except (OSError, msgspec.MsgspecError):
        return None


def is_like(directory: Path, lora: LoraSection) -> bool:
    """Whether a version's directory holds what `lora` has the trainer train: such an adapter, or whole weights."""
    try:
        config = json.loads((directory / ADAPTER_CONFIG).read_bytes())
        found = (config["r"], float(config["lora_alpha"]), set(config["target_modules"]))
    except FileNotFoundError:
        return not lora.enabled
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return lora.as_adapter and found == (lora.rank, lora.alpha, set(lora.modules))


def read_current(weights_dir: Path) -> Release | None:
    """The release that ``current`` points at; ``None`` when there is none, or none that could be checked."""
    directory = (weights_dir / CURRENT).resolve()
    note = read_note(directory)
    return None if note is None else Release(note.version, directory, note.probe_ids, note.probe_scores)


def point_current(weights_dir: Path, release: Release) -> None:
    """Let ``current`` point at the release, in one rename."""
    aside = weights_dir / f".{CURRENT}.partial"
    aside.unlink(missing_ok=True)
    aside.symlink_to(release.directory.name)
    aside.rename(weights_dir / CURRENT)


def remove_leftovers(weights_dir: Path) -> None:
    """Delete what a trainer left that ended while it exported: each is as large as the weights, and of no use."""
    for left in (*weights_dir.glob(".*.partial"), weights_dir / CANDIDATE):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def versions_on_disk(weights_dir: Path) -> list[int]:
    """Versions whose directories exist, oldest first."""
    return sorted(int(path.name) for path in weights_dir.iterdir() if path.name.isdecimal())
