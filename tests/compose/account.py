"""What became of every turn: read from Redis' streams and the trainer's newest checkpoint."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compose.stack import Stack
from tests.scripted.scoring_engine import SIZE
from tests.scripted.student import save_student

MARK = re.compile(r"\[s\d+\.\d+\]")
#: Runs in a container, which knows the configuration and the password.
READING = """
import asyncio, json
from hintloop_contract.config import parse_arguments
from hintloop_contract.opening import open_broker

async def main():
    broker = open_broker(parse_arguments("account", []).config)
    turns, drops, after = {}, [], "0-0"
    while batch := await broker.history(after, 500):
        after = batch[-1].entry_id
        for entry in batch:
            if entry.kind == "turn":
                asked = json.loads(entry.record.messages)[-1]["content"]
                turns.setdefault(entry.turn_id, []).append(asked)
            elif entry.kind == "drop":
                drops.append([entry.turn_id, str(entry.message.reason)])
    lengths = {}
    for name in ("captures", "turns", "judged", "samples", "dead"):
        lengths[name] = await broker.client.xlen(broker.keys.of(name))
    waiting = [fields[b"turn_id"].decode() for _, fields in await broker.client.xrange(broker.keys.of("samples"))]
    print(json.dumps({"turns": turns, "drops": drops, "lengths": lengths, "waiting": waiting}))
    await broker.close()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Account:
    """``marks``: the exchanges that each turn id stands for. ``trained``: ids in the newest checkpoint, in order."""

    marks: dict[str, list[str]]
    drops: list[tuple[str, str]]
    lengths: dict[str, int]
    waiting: list[str]
    trained: list[str]
    num_trained: int

    @property
    def under_way(self) -> int:
        """What is between linker and trainer."""
        return sum(self.lengths[name] for name in ("turns", "judged"))

    def ends(self) -> Counter[str]:
        """How often each turn came to an end, or waits for one: once is right."""
        return Counter([*self.trained, *(turn for turn, _ in self.drops), *self.waiting_untrained])

    @property
    def waiting_untrained(self) -> list[str]:
        """Samples that no checkpoint holds yet."""
        held = set(self.trained)
        return [turn for turn in self.waiting if turn not in held]


def take_account(stack: Stack) -> Account:
    """How things stand."""
    found = stack.python("judge", READING)
    marks = {turn: [MARK.findall(text)[-1] for text in asked] for turn, asked in found["turns"].items()}
    state = newest_checkpoint(stack.volume("trainer") / "checkpoints")
    return Account(
        marks=marks,
        drops=[(turn, reason) for turn, reason in found["drops"]],
        lengths=found["lengths"],
        waiting=found["waiting"],
        trained=state.get("trained_turn_ids", []),
        num_trained=state.get("num_trained", 0),
    )


def captures_of(stack: Stack, marks: set[str]) -> dict[str, list[str]]:
    """What the linker was given of these exchanges: turn, status, and when each ended."""
    found: dict[str, list[str]] = {mark: [] for mark in marks}
    for line in (stack.volume("spool") / "captures.log").read_text().splitlines():
        capture = json.loads(line)
        asked = json.loads(base64.b64decode(capture["request"])).get("messages") or [{"content": ""}]
        for mark in marks.intersection(MARK.findall(asked[-1]["content"])[-1:]):
            found[mark].append(f"{capture['turn_id']} {capture['status']} ended {capture['end_ms']}")
    return found


def newest_checkpoint(folder: Path) -> dict[str, Any]:
    """The state of the newest whole checkpoint; empty when there is none."""
    whole = sorted(folder.glob("step-*/state.json"))
    found: dict[str, Any] = json.loads(whole[-1].read_text()) if whole else {}
    return found


def save_tiny_student(folder: Path) -> None:
    """A student of a few thousand weights, whose tokens are those of the stand-in engines."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    written = (folder / "config.json").read_bytes()
    save_student(folder)
    (folder / "config.json").write_bytes(written)
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o755)
