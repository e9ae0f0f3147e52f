"""How well a judge reads what users and tools say: precision and recall on triples labelled by hand.

`quality_set.jsonl` was used while the rules were written; `quality_held_out.jsonl` never was. A line holds
``messages``, ``answer``, ``next_state``, the ``score`` that a person gives, and ``hint``: the words that a hint must
carry, ``false`` where none is expected, ``null`` where either is fine.
Set ``PRM_URL`` (and ``PRM_API_KEY``, ``PRM_MODEL``) to measure an LLM judge too.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.backends import Backend, Opinion
from hintloop_judge.conversation import Exchange
from hintloop_judge.unjudged import judgeable
from hintloop_judge.wiring import build_deps

HERE = Path(__file__).parent
SETS = {"set": HERE / "quality_set.jsonl", "held_out": HERE / "quality_held_out.jsonl"}
SCORES = (1, 0, -1)


@dataclass(frozen=True, slots=True)
class Triple:
    """One labelled exchange. ``hint``: words that a hint must carry; ``False``: none expected; ``None``: either."""

    name: str
    kind: str
    language: str
    exchange: Exchange
    score: int
    hint: list[str] | bool | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a judge said of a triple."""

    triple: Triple
    score: int | None
    hint: str | None

    @property
    def carried(self) -> bool:
        """Whether the hint holds every word it must."""
        wanted = self.triple.hint if isinstance(self.triple.hint, list) else []
        return self.hint is not None and all(word.lower() in self.hint.lower() for word in wanted)


def load(path: Path) -> list[Triple]:
    """The triples of a file."""
    triples = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        exchange = Exchange(tuple(row["messages"]), row["answer"], tuple(row["next_state"]))
        triples.append(Triple(row["id"], row["kind"], row["language"], exchange, row["score"], row["hint"]))
    return triples


async def judge_all(backend: Backend, triples: Sequence[Triple]) -> list[Found]:
    """Each triple, judged as the stream does. Raises ``DependencyError`` when the judge's engine is away."""

    async def one(triple: Triple) -> Found:
        exchange = judgeable(triple.exchange)
        if exchange is None:
            return Found(triple, None, None)
        opinion: Opinion = await backend.judge(exchange, score=True, hint=True)
        return Found(triple, opinion.judgement.score, opinion.judgement.hint)

    return list(await asyncio.gather(*(one(triple) for triple in triples)))


def report(found: Sequence[Found]) -> dict[str, Any]:
    """Precision and recall per score, of hints, and the share of right scores by kind and language."""
    return {
        "num_triples": len(found),
        "accuracy": _share([item.score == item.triple.score for item in found]),
        "scores": {f"{score:+d}" if score else "0": _per_score(found, score) for score in SCORES},
        "hints": _hints(found),
        "accuracy_by_kind": _grouped(found, "kind"),
        "accuracy_by_language": _grouped(found, "language"),
        "wrong": [item.triple.name for item in found if item.score != item.triple.score],
    }


def _per_score(found: Sequence[Found], score: int) -> dict[str, Any]:
    said = [item for item in found if item.score == score]
    meant = [item for item in found if item.triple.score == score]
    return {
        "precision": _share([item.triple.score == score for item in said]),
        "recall": _share([item.score == score for item in meant]),
        "num_labelled": len(meant),
    }


def _hints(found: Sequence[Found]) -> dict[str, Any]:
    """A hint is right when one is expected and it carries the words; recall counts right ones alone."""
    counted = [item for item in found if item.triple.hint is not None]
    offered = [item for item in counted if item.hint is not None]
    expected = [item for item in counted if item.triple.hint]
    return {
        "precision": _share([bool(item.triple.hint) and item.carried for item in offered]),
        "recall": _share([item.carried for item in expected]),
        "num_expected": len(expected),
        "wrong": [
            item.triple.name
            for item in counted
            if (item.hint is not None and not (item.triple.hint and item.carried))
            or (item.triple.hint and item.hint is None)
        ],
    }


def _grouped(found: Sequence[Found], name: str) -> dict[str, float | None]:
    groups = dict.fromkeys(getattr(item.triple, name) for item in found)
    return {
        group: _share([item.score == item.triple.score for item in found if getattr(item.triple, name) == group])
        for group in groups
    }


def _share(marks: Sequence[bool]) -> float | None:
    """Share of true marks; ``None`` of none."""
    return round(sum(marks) / len(marks), 4) if marks else None


async def _measure(prm: dict[str, Any]) -> dict[str, Any]:
    broker = MemoryBroker()
    deps = await build_deps(Config.model_validate({"prm": prm}), broker)
    try:
        return {name: report(await judge_all(deps.backend, load(path))) for name, path in SETS.items()}
    finally:
        await deps.backend.close()
        await broker.close()


def run() -> dict[str, Any]:
    """The ``rules`` backend on both sets, and the LLM judge at ``PRM_URL`` when it is set."""
    result: dict[str, Any] = {"rules": asyncio.run(_measure({"judge_backend": "rules"}))}
    if address := os.environ.get("PRM_URL"):
        settings = {
            "judge_backend": "llm",
            "prm_url": address,
            "prm_api_key": os.environ.get("PRM_API_KEY", ""),
            "judge_model": os.environ.get("PRM_MODEL", ""),
        }
        result["llm"] = asyncio.run(_measure(settings))
    return result


if __name__ == "__main__":
    print(json.dumps(run(), ensure_ascii=False, indent=2))
