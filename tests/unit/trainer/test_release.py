"""Which versions on disk can be gone back to: those of what is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.lora import LoraSection
from hintloop_trainer.megatron.adapter import peft_config
from hintloop_trainer.publish.release import (
    ADAPTER_CONFIG,
    Release,
    is_like,
    read_note,
    remove_leftovers,
    versions_on_disk,
    write_note,
)

LORA = LoraSection(enabled=True, rank=4, alpha=8.0, target_modules=["q_proj", "v_proj"])


def directory_of(tmp_path: Path, lora: LoraSection | None) -> Path:
    if lora is not None:
        (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(peft_config(lora, "/base")))
    return tmp_path


@pytest.mark.parametrize(
    ("there", "trained", "expected"),
    [
        (None, LoraSection(), True),
        (None, LORA, False),
        (LORA, LoraSection(), False),
        (LORA, LORA, True),
        (LORA, LORA.model_copy(update={"publish": "merged"}), False),
        (None, LORA.model_copy(update={"publish": "merged"}), False),
        # The very same tensors would mean other weights.
        (LORA.model_copy(update={"alpha": 16.0}), LORA, False),
        (LORA.model_copy(update={"rank": 8}), LORA, False),
        (LORA.model_copy(update={"target_modules": ["q_proj"]}), LORA, False),
    ],
)
def test_a_version_is_of_what_is_trained(
    tmp_path: Path, there: LoraSection | None, trained: LoraSection, expected: bool
) -> None:
    assert is_like(directory_of(tmp_path, there), trained) is expected


@pytest.mark.parametrize("text", ["", "[]", '{"r": 4}', '{"r": 4, "lora_alpha": "x", "target_modules": 3}'])
def test_an_adapter_that_cannot_be_read_is_of_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text(text)
    assert not is_like(tmp_path, LORA) and not is_like(tmp_path, LoraSection())


def test_a_note_says_what_is_in_the_weights_and_no_checkpoint_has(tmp_path: Path) -> None:
    write_note(Release(3, tmp_path, [1, 2], [-0.5], ["turn-1", "turn-2"]))
    note: Any = read_note(tmp_path)
    assert (note.version, note.trained) == (3, ["turn-1", "turn-2"])
    # One of before that was noted.
    document = json.loads((tmp_path / "hintloop_release.json").read_text())
    del document["trained"]
    (tmp_path / "hintloop_release.json").write_text(json.dumps(document))
    note = read_note(tmp_path)
    assert note.trained == []


def test_what_a_killed_export_left_goes_at_the_next_start(tmp_path: Path) -> None:
    for name in (".7.partial", ".candidate", "..candidate.partial", "6", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"0" * 10)
    (tmp_path / ".current.partial").symlink_to("6")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".current.partial", "6", "other"]
    assert (tmp_path / "6" / "model.safetensors").is_file()


def test_directories_of_other_names_are_no_versions(tmp_path: Path) -> None:
    for name in ("7", "12", "²", ".8.partial", "current", "-1"):
        (tmp_path / name).mkdir()
    assert versions_on_disk(tmp_path) == [7, 12]
