"""The null-hint control: without a hint, and with equal weights, the teacher term must be nothing but rounding.

Two sides, each un-hinted ids against scores of the same weights: the PRM engine against what it said of a fixed text
when these weights were first seen, and the policy engine against the log-probabilities captured with its answers.
A side that cannot be compared says why; it never counts as passed.

Legend: T = response tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from hintloop_contract.errors import HintloopError
from hintloop_contract.messages import LinkedTurn, Sampling, TurnRecord
from hintloop_contract.rounding import tolerances
from hintloop_contract.tensors import unpack
from numpy.typing import NDArray

from hintloop_teacher.dialects.sglang import SglangDialect
from hintloop_teacher.dialects.vllm import VllmDialect
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import PROBE_TEXT

if TYPE_CHECKING:
    from hintloop_teacher.app import TeacherDeps

#: Turns kept for the policy's side, and how many of them are enough to run it.
NUM_RECENT_TURNS = 8
ENOUGH_TURNS = 4
_KIND, _TTL_S, _MOST_REFERENCES = "null-hint-reference", 30 * 24 * 3600, 64

Status = Literal["equal", "differs", "recorded", "not_run"]


@dataclass(frozen=True, slots=True)
class ControlSide:
    """One comparison. ``mean`` and ``largest`` are of |A| over ``num_tokens``, nats, with their tolerances."""

    status: Status
    detail: str
    num_tokens: int = 0
    mean: float | None = None
    largest: float | None = None
    mean_tolerance: float | None = None
    largest_tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class ControlReport:
    """Both sides."""

    prm: ControlSide
    policy: ControlSide

    @property
    def passed(self) -> bool | None:
        """False when a side differs, true when all that was compared is equal, ``None`` when nothing was compared."""
        compared = [side.status for side in (self.prm, self.policy) if side.status in ("equal", "differs")]
        return all(status == "equal" for status in compared) if compared else None

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"passed": self.passed, **asdict(self)}


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn as captured: ids, log-probabilities float32 [T], and the weights that made it."""

    turn_id: str
    version: int
    engine_url: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: NDArray[np.float32]


@dataclass(slots=True)
class RecentTurns:
    """The newest turns whose captured log-probabilities are at temperature 1 and of one version."""

    turns: deque[SeenTurn] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_TURNS))
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there are :data:`ENOUGH_TURNS`."""

    def add(self, turn: LinkedTurn, record: TurnRecord) -> None:
        """Keep a turn, if it can be compared."""
        if turn.version_oldest != turn.version_newest or not _at_temperature_1(turn):
            return
        ids = [[int(token) for token in unpack(packed)] for packed in (record.prompt_ids, record.response_ids)]
        self.turns.append(
            SeenTurn(turn.turn_id, turn.version_newest, turn.engine_url, ids[0], ids[1], unpack(record.logprobs))
        )
        if len(self.turns) >= ENOUGH_TURNS:
            self.enough.set()

    def of(self, version: int | None) -> list[SeenTurn]:
        """Those that ``version`` made; of the newest one seen when nothing was ever released."""
        if version is None and self.turns:
            version = self.turns[-1].version
        return [turn for turn in self.turns if turn.version == version]


def _at_temperature_1(turn: LinkedTurn) -> bool:
    if turn.behaviour_space == "raw":
        return True
    sampling: Sampling = turn.sampling
    shaped = sampling.constrained or sampling.top_p != 1 or sampling.min_p or (sampling.top_k or -1) > 0
    return sampling.temperature == 1 and not (shaped and turn.behaviour_space == "processed")


async def null_hint_control(deps: TeacherDeps) -> ControlReport:
    """Run both sides now.

    Raises:
        DependencyError: the PRM engine or Redis is away; a policy engine that is away leaves its side not run.
        ProbeError: the PRM engine cannot teach.
    """
    return ControlReport(await _prm_side(deps, await deps.engine.prepared()), await _policy_side(deps))


async def _prm_side(deps: TeacherDeps, scorer: ForcedScorer) -> ControlSide:
    if not scorer.dialect.takes_ids:
        return ControlSide("not_run", "the PRM engine takes no ids")
    ids = deps.engine.vocabulary.encode(PROBE_TEXT)
    # Asked again: the engine's weights may have changed since it was probed.
    facts = await scorer.dialect.facts(deps.config.prm.teacher_model)
    scores = (await scorer.score(ids[:1], ids[1:])).logprobs
    name = f"{facts.dialect}:{facts.model}:{facts.weights or '-'}:{deps.engine.vocabulary.fingerprint}"
    recorded = await deps.broker.kept(_KIND, name)
    if recorded is None:
        value = json.dumps(scores.tolist()).encode()
        await deps.broker.keep(_KIND, name, value, ttl_s=_TTL_S, max_entries=_MOST_REFERENCES)
        return ControlSide("recorded", f"first seen: the scores of {name} are now its reference", len(scores))
    reference = np.asarray(json.loads(recorded), dtype=np.float32)
    known = "" if facts.weights else " (the engine does not say its weights' version: they may have been changed)"
    dtype = deps.config.prm.engine_dtype or deps.config.model.dtype
    return compared([scores], [reference], dtype, f"against the reference of {name}{known}")


async def _policy_side(deps: TeacherDeps) -> ControlSide:
    state = await deps.broker.weights()
    turns = deps.recent.of(state.current)
    if not turns or state.updating is not None:
        why = "weights are being published" if state.updating is not None else "no turn of the current weights was seen"
        return ControlSide("not_run", why)
    try:
        scorer = await _policy_scorer(deps, turns[-1].engine_url)
        scores = [(await scorer.score(turn.prompt_ids, turn.response_ids)).logprobs for turn in turns]
    except HintloopError as error:
        return ControlSide("not_run", str(error))
    if await deps.broker.weights() != state:
        return ControlSide("not_run", "the weights changed meanwhile; ask again")
    detail = f"against {len(turns)} captured answer(s) of version {turns[-1].version}"
    return compared(scores, [turn.logprobs for turn in turns], deps.config.model.dtype, detail)


async def _policy_scorer(deps: TeacherDeps, url: str) -> ForcedScorer:
    client = deps.renderer.engines.any_client(url)
    dialect = SglangDialect(client) if deps.config.rollout.engine == "sglang" else VllmDialect(client)
    return ForcedScorer(
        dialect, await dialect.facts(""), vocabulary_size=deps.engine.vocabulary.size, max_concurrency=2
    )


def compared(
    scores: Sequence[NDArray[np.float32]], references: Sequence[NDArray[np.float32]], dtype: str, detail: str
) -> ControlSide:
    """Compare scores [T] of each answer with their references [T], both computed in ``dtype``."""
    for score, reference in zip(scores, references, strict=True):
        if score.shape != reference.shape:
            return ControlSide("differs", f"{detail}: {score.shape[0]} scores, {reference.shape[0]} references")
    differences = np.abs(np.concatenate(list(scores)).astype(np.float64) - np.concatenate(list(references)))
    mean, largest = float(differences.mean()), float(differences.max())
    mean_tolerance, largest_tolerance = tolerances(dtype)
    # A difference that is no number is none that is small.
    status: Status = "equal" if mean <= mean_tolerance and largest <= largest_tolerance else "differs"
    return ControlSide(status, detail, len(differences), mean, largest, mean_tolerance, largest_tolerance)
