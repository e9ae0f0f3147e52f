"""What the engines really serve: scores of the probe against what the releases recorded, and caches against scores.

An engine's word about its version is no proof; the numbers are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import HintloopError
from hintloop_contract.rounding import tolerances
from hintloop_contract.tensors import unpack

from hintloop.doctor.checks.asking import PolicyEngine
from hintloop.doctor.finding import Finding, fail, ok, skipped
from hintloop.doctor.look import Look

#: Note that the trainer leaves beside each version's weights, and what its first weights said of the probe.
NOTE, REFERENCE = "hintloop_release.json", "null_hint_reference.json"
#: Largest mean difference per token between engine and trainer on the probe, nats, by dtype.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
#: How many times nearer to other weights than to the released ones an engine is that serves those.
NEARER = 4.0
#: Differences below this are rounding, nats; two versions that lie no further apart are not told from one another.
ROUNDING = 2e-5
#: Looks at the engines until no release came in between.
TRIES = 3
#: Captured turns whose next token is asked for.
NUM_TURNS = 4
BASE = "the first weights"


@dataclass(frozen=True, slots=True)
class Known:
    """What weights say of the probe: ``scores`` of every id after the first, nats."""

    name: str
    ids: Sequence[int]
    scores: Sequence[float]
    version: str = ""


async def scores(look: Look) -> list[Finding]:
    """Whether every engine scores the probe as the released weights do, or as those that are being published."""
    name = "scores of the probe"
    if look.teacher is None:
        return [skipped(name, "the engines cannot be asked")]
    for _ in range(TRIES):
        weights = await look.broker.weights()
        if weights.current is None:
            return [skipped(name, "no version is released yet")]
        directory = Path(look.config.publishing.weights_dir)
        right = [note for version in (weights.current, weights.updating) if (note := _note(directory / str(version)))]
        if not right:
            return [skipped(name, f"{directory / str(weights.current)} holds no {NOTE} on this machine")]
        others = _others(look, [weights.current, weights.updating])
        found = [await _scored(look, url.rstrip("/"), right, others) for url in look.config.engine_urls]
        if await look.broker.weights() == weights:
            return found
    return [skipped(name, "weights were published meanwhile, again and again")]


async def _scored(look: Look, url: str, right: Sequence[Known], others: Sequence[Known]) -> Finding:
    name, engine = "scores of the probe", PolicyEngine(look, url)
    ids = list(right[0].ids)
    try:
        given, says = await engine.score(ids), await _says(engine)
    except HintloopError as error:
        return skipped(name, f"{url}: {error!s:.160}")
    serves = min(right, key=lambda known: _distance(given, known.scores))
    far = _distance(given, serves.scores)
    near = {known.name: _distance(given, known.scores) for known in others if list(known.ids) == ids}
    best = min(near, key=lambda which: near[which], default="")
    tolerance = look.config.publishing.probe_tolerance or TOLERANCES[look.config.model.dtype]
    seen = f"{url}: mean difference {far:.2g} nats a token to {serves.name} (allowed {tolerance:g})"
    elsewhere = bool(best) and far > ROUNDING and far > NEARER * near[best]
    numbered = says is not None and says.isdecimal() and says not in [known.version for known in right]
    if numbered and (elsewhere or far > tolerance or len(right) == 1):
        return fail(name, f"{seen}; it says that it serves version {says}", Cause.ENGINE_BEHIND)
    if elsewhere:
        cause = Cause.ENGINE_AT_BASE if best == BASE else Cause.ENGINE_BEHIND
        return fail(name, f"{seen}, {near[best]:.2g} to {best}", cause)
    if not far <= tolerance:
        return fail(name, seen, Cause.ENGINE_BEHIND)
    return ok(name, seen)


async def _says(engine: PolicyEngine) -> str | None:
    try:
        return await engine.says()
    except HintloopError:
        # An engine without the route: its scores alone tell.
        return None


def _others(look: Look, right: Sequence[int | None]) -> list[Known]:
    """What other weights say of the probe: the first ones, and those of versions that are still there."""
    root = Path(look.config.publishing.weights_dir)
    reference = _read(look.config.training.checkpoint_dir.parent / REFERENCE)
    known = [Known(BASE, reference["ids"], reference["logprobs"])] if {"ids", "logprobs"} <= reference.keys() else []
    earlier = sorted(int(path.name) for path in root.glob("[0-9]*") if path.name.isdecimal())
    for version in reversed([version for version in earlier if version not in right]):
        note = _note(root / str(version))
        known += [note] if note else []
    return known


def _note(directory: Path) -> Known | None:
    note = _read(directory / NOTE)
    if not {"version", "probe_ids", "probe_scores"} <= note.keys():
        return None
    return Known(f"version {note['version']}", note["probe_ids"], note["probe_scores"], str(note["version"]))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _distance(given: np.ndarray[Any, Any], known: Sequence[float]) -> float:
    if len(given) != len(known):
        return float("inf")
    return float(np.abs(given.astype(np.float64) - np.asarray(known)).mean())


async def caches(look: Look) -> list[Finding]:
    """Whether engines continue captured turns, of which they may remember something, as they score them anew."""
    if look.teacher is None or look.recent is None or not look.recent.records:
        return [skipped("cache", "no turn was captured of late" if look.teacher else "the engines cannot be asked")]
    turns = _turns(look)
    return [await _cached(look, url.rstrip("/"), turns) for url in look.config.engine_urls]


def _turns(look: Look) -> list[list[int]]:
    """The longest captured turns, each once, up to the answer's last token: short ones fill no block of a cache.

    An agent's next request begins so, and a cache holds whole blocks of both prompts and answers.
    """
    assert look.recent is not None
    found = {
        (*unpack(record.prompt_ids).tolist(), *unpack(record.response_ids).tolist()[:-1])
        for _, record in look.recent.records.values()
    }
    longest = look.config.model.max_seq_len
    fitting = sorted((ids for ids in found if 1 < len(ids) < longest), key=len, reverse=True)
    return [list(ids) for ids in fitting[:NUM_TURNS]]


async def _cached(look: Look, url: str, turns: Sequence[list[int]]) -> Finding:
    name = "cache"
    engine, differences = PolicyEngine(look, url), []
    try:
        for ids in turns:
            token, said = (await engine.next_token(ids, 1.0)).best
            # Scores of a prompt are computed anew: engines do not take them from the cache.
            differences.append(abs(said - float((await engine.score([*ids, token]))[-1])))
    except (HintloopError, KeyError, IndexError, TypeError, ValueError) as error:
        return skipped(name, f"{url} was not asked: {type(error).__name__}: {error!s:.160}")
    if not differences:
        return skipped(name, "no captured turn has a length that can be asked")
    mean, largest = float(np.mean(differences)), float(np.max(differences))
    allowed_mean, allowed_largest = tolerances(look.config.model.dtype)
    lengths = f"{len(turns[-1])} to {len(turns[0])} tokens"
    seen = (
        f"{url}: {len(turns)} captured turns of {lengths}, continued and scored: mean difference {mean:.2g}, largest "
    )
    seen += f"{largest:.2g} nats (allowed {allowed_mean:.2g} and {allowed_largest:.2g})"
    if mean > allowed_mean or largest > allowed_largest:
        return fail(name, seen, Cause.CACHE_STALE)
    return ok(name, seen)
