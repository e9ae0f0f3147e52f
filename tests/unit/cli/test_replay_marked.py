"""Files with the byte order mark that some editors write."""

from __future__ import annotations

import codecs
from pathlib import Path

from hintloop.replay.lines import numbered_lines
from hintloop_contract.config import load_config


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b"{}\n[]\n")
    assert list(numbered_lines(path)) == [(1, b"{}\n"), (2, b"[]\n")]


def test_a_byte_order_mark_is_no_part_of_a_configuration(tmp_path: Path) -> None:
    toml, settings = tmp_path / "config.toml", tmp_path / "settings.json"
    toml.write_bytes(codecs.BOM_UTF8 + b"[training]\nseed = 5\n")
    settings.write_bytes(codecs.BOM_UTF8 + b'{"training": {"max_steps": 7}}')
    training = load_config([toml], settings=[settings], environ={}).config.training
    assert (training.seed, training.max_steps) == (5, 7)
