"""What a directory's replay is of, so that another one is not mixed into it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec
from hintloop_contract.config import LoadedConfig

from hintloop.errors import CommandError
from hintloop.replay.lines import Checked
from hintloop.replay.until import Until

FILE = "manifest.json"


class Manifest(msgspec.Struct, frozen=True):
    """The file's content, how far it is run, and a hash of each side's configuration (secrets left out)."""

    file: str
    sha256: str
    until: str
    sides: dict[str, str]

    @classmethod
    def of(cls, facts: Checked, until: Until, loaded: Mapping[str, LoadedConfig]) -> Self:
        """The manifest of what is asked for."""
        return cls(
            str(facts.path), facts.sha256, until.value, {side: _digest(config) for side, config in loaded.items()}
        )

    def require_same(self, directory: Path) -> None:
        """Note it in ``directory``, or see that it is what stands there.

        Raises:
            CommandError: the directory holds another replay.
        """
        path = directory / FILE
        if not path.is_file():
            path.write_bytes(msgspec.json.encode(self))
            return
        try:
            there = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.MsgspecError as error:
            raise CommandError(f"{path} cannot be read: {error}; give another --out, or --fresh") from error
        differing = []
        if there.sha256 != self.sha256:
            differing.append(f"another file ({there.file})")
        if there.until != self.until:
            differing.append(f"--until {there.until}")
        differing += [
            f"the configuration of side {side}"
            for side in sorted({*there.sides, *self.sides})
            if there.sides.get(side) != self.sides.get(side)
        ]
        if differing:
            raise CommandError(
                f"--out {directory} holds a replay with {', '.join(differing)}; give another --out, or --fresh to "
                "empty this one"
            )


def _digest(loaded: LoadedConfig) -> str:
    """Of what is configured, and of the files that it names and that people edit between two runs."""
    config = loaded.config
    rows = [(path, value) for path, value, origin in loaded.rows() if origin != "default"]
    digest = hashlib.sha256(json.dumps(rows).encode())
    prompts = config.prm.judge_prompt_dir
    files = [prompts / name for name in ("score.md", "hint.md")] if prompts is not None else []
    if config.custom_loss is not None:
        files += [loaded.directory / config.custom_loss, Path(config.custom_loss)]
    for file in files:
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()
