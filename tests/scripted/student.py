"""A student whose tokens are the characters of ASCII, as `tests.scripted.scoring_engine` speaks them."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

from tests.scripted.scoring_engine import SIZE


def save_student(folder: Path) -> str:
    """Write its tokenizer and configuration into ``folder``; gives the path."""
    tokenizer = Tokenizer(BPE({chr(i): i for i in range(SIZE)}, []))
    tokenizer.decoder = Fuse()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": SIZE}), encoding="utf-8")
    return str(folder)
