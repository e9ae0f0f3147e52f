"""What the teacher would teach: nothing without a hint, and with one the action that the hint asks for.

Both sides are scored by the PRM engine, so that the hint is all that differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError
from hintloop_contract.rounding import tolerances
from numpy.typing import NDArray

from hintloop.doctor.checks import agreement, rendering
from hintloop.doctor.finding import Finding, fail, ok, skipped
from hintloop.doctor.look import Look

if TYPE_CHECKING:
    from hintloop_teacher.app import TeacherDeps

#: A tool returned FileNotFoundError; the hint says to look first.
REQUEST = "Write one shell command that prints the file config.yaml."
HINT = "Check that the file exists before you read it."
HINTED_ACTION = "test -f config.yaml && cat config.yaml"
#: Mean gain of the hinted action's tokens that a hint must bring, nats.
MARGIN = 0.05
NUM_SHOWN = 10


async def check(look: Look) -> list[Finding]:
    """Findings of teacher and advantage."""
    if look.teacher is None or not look.teaches:
        return [skipped("advantage", "the PRM engine cannot teach; see above")]
    if not look.teacher.engine.scorer.dialect.takes_ids:
        return [skipped("advantage", "the PRM engine takes no ids")]
    try:
        plain, hinted, action = await _prompts(look, look.teacher)
    except DependencyError as error:
        return [skipped("advantage", f"no policy engine renders the prompt: {error.detail}")]
    except HintloopError as error:
        return [*await rendering.check(look), fail("hinted prompt", str(error), Cause.RENDERING_DIFFERS)]
    findings = [*await rendering.check(look), await agreement.between(look)]
    scorer = look.teacher.engine.scorer
    try:
        first = (await scorer.score(plain, action)).logprobs
        again = (await scorer.score(plain, action)).logprobs
        with_hint = (await scorer.score(hinted, action)).logprobs
    except HintloopError as error:
        return [*findings, fail("advantage", str(error), Cause.PRM_GIVES_NO_LOGPROBS)]
    findings += [_null(look, first, again), _taught(look.teacher, action, first, with_hint)]
    return [*findings, await agreement.context(look)]


async def _prompts(look: Look, teacher: TeacherDeps) -> tuple[list[int], list[int], list[int]]:
    """Ids of the prompt, of the prompt with the hint, and of the action."""
    from hintloop_teacher.hints import hint_block
    from hintloop_teacher.rendering import Request

    url = look.config.engine_urls[0]
    messages = [{"role": "user", "content": REQUEST}]
    request = Request(look.config.rollout.engine, url.rstrip("/"), messages, None, {}, [])
    plain = await teacher.renderer.render(request, messages)
    block = hint_block(look.config.opd.hint_format, HINT)
    hinted = await teacher.renderer.hinted_ids(replace(request, captured_ids=plain), block)
    return plain, hinted, teacher.engine.vocabulary.encode(HINTED_ACTION)


def _null(look: Look, first: NDArray[np.float32], again: NDArray[np.float32]) -> Finding:
    dtype = look.config.prm.engine_dtype or look.config.model.dtype
    mean, largest = float(np.abs(first - again).mean()), float(np.abs(first - again).max())
    allowed_mean, allowed_largest = tolerances(dtype)
    seen = f"mean |A| {mean:.2g}, largest {largest:.2g} (allowed {allowed_mean:.2g} and {allowed_largest:.2g})"
    if mean > allowed_mean or largest > allowed_largest:
        return fail("advantage without a hint", seen, Cause.NULL_HINT_NOT_ZERO)
    return ok("advantage without a hint", seen)


def _taught(
    teacher: TeacherDeps, action: list[int], plain_T: NDArray[np.float32], hinted_T: NDArray[np.float32]
) -> Finding:
    advantages_T = hinted_T - plain_T
    order = np.argsort(-np.abs(advantages_T))[:NUM_SHOWN]
    rows: list[dict[str, Any]] = [
        {
            "token": teacher.engine.vocabulary.decode([action[place]]),
            "without hint": round(float(plain_T[place]), 3),
            "with hint": round(float(hinted_T[place]), 3),
            "advantage": round(float(advantages_T[place]), 3),
        }
        for place in order
    ]
    mean, spread = float(advantages_T.mean()), float(advantages_T.std())
    both = bool((advantages_T > 0).any() and (advantages_T < 0).any())
    seen = f"mean {mean:+.3f} nats a token over the action that the hint asks for, spread {spread:.3f}"
    seen += ", both signs" if both else ", one sign"
    if mean < MARGIN or spread == 0:
        return fail(
            "advantage with a hint", f"{seen}; at least {MARGIN:+.2f} is expected", Cause.TEACHER_IGNORES_HINTS, rows
        )
    return ok("advantage with a hint", seen, rows)
