"""What the teacher would teach: nothing without a hint, and with one the action that the hint asks for.

Both sides are scored by the PRM engine, so that the hint is all that differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

#: A tool returned FileNotFoundError; the hint says to look first. The other hint is about nothing of the kind.
REQUEST = "Write one shell command that prints the file config.yaml."
HINT, OTHER_HINT = "Check that the file exists before you read it.", "Use formal words and thank the user at the end."
HINTED_ACTION = "Check that config.yaml exists before reading it: test -f config.yaml && cat config.yaml"
#: Mean gain of the hinted action's tokens that the hint must bring, over none and over the other one, nats.
MARGIN = 0.1
NUM_SHOWN = 10


async def check(look: Look) -> list[Finding]:
    """Findings of teacher and advantage."""
    if look.teacher is None:
        return [skipped("advantage", "the teacher could not be built; see above")]
    if not look.teaches:
        rendered = await rendering.check(look) if look.teacher.needs.hint else []
        why = "cannot teach; see above" if look.teacher.needs.prm_engine else "is not asked to teach"
        return [*rendered, skipped("advantage", f"the PRM engine {why}")]
    if not look.teacher.engine.scorer.dialect.takes_ids:
        return [skipped("advantage", "the PRM engine takes no ids")]
    try:
        prompts = await _prompts(look, look.teacher)
    except DependencyError as error:
        return [skipped("advantage", f"no policy engine renders the prompt: {error.detail}")]
    except HintloopError as error:
        return [*await rendering.check(look), fail("hinted prompt", str(error), Cause.RENDERING_DIFFERS)]
    findings = [*await rendering.check(look), await agreement.between(look), await agreement.context(look)]
    try:
        scores = await _scores(look.teacher, prompts)
    except HintloopError as error:
        return [*findings, fail("advantage", str(error), _cause_of(error))]
    return [*findings, _null(look, scores.plain, scores.again), _taught(look.teacher, prompts.action, scores)]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Ids of the prompt, of the prompt with the hint and with the other one, and of the action."""

    plain: list[int]
    hinted: list[int]
    otherwise: list[int]
    action: list[int]


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the action under each prompt, float32 ``[T]``, nats; twice under the plain one."""

    plain: NDArray[np.float32]
    again: NDArray[np.float32]
    hinted: NDArray[np.float32]
    otherwise: NDArray[np.float32]


async def _scores(teacher: TeacherDeps, prompts: Prompts) -> Scores:
    asked = (prompts.plain, prompts.plain, prompts.hinted, prompts.otherwise)
    found = [(await teacher.engine.scorer.score(ids, prompts.action)).logprobs for ids in asked]
    return Scores(*found)


def _cause_of(error: HintloopError) -> Cause:
    from hintloop_teacher.errors import MisalignedError, TooLongError

    if isinstance(error, TooLongError) or "context" in str(error):
        return Cause.TEACHER_CONTEXT_SHORT
    return Cause.PRM_SHIFTED if isinstance(error, MisalignedError) else Cause.PRM_GIVES_NO_LOGPROBS


async def _prompts(look: Look, teacher: TeacherDeps) -> Prompts:
    from hintloop_teacher.hints import hint_block
    from hintloop_teacher.rendering import Request

    url = look.config.engine_urls[0]
    messages = [{"role": "user", "content": REQUEST}]
    request = Request(look.config.rollout.engine, url.rstrip("/"), messages, None, {}, [])
    plain = await teacher.renderer.render(request, messages)
    request = replace(request, captured_ids=plain)
    hinted, otherwise = [
        await teacher.renderer.hinted_ids(request, hint_block(look.config.opd.hint_format, hint))
        for hint in (HINT, OTHER_HINT)
    ]
    return Prompts(plain, hinted, otherwise, teacher.engine.vocabulary.encode(HINTED_ACTION))


def _null(look: Look, first: NDArray[np.float32], again: NDArray[np.float32]) -> Finding:
    dtype = look.config.prm.engine_dtype or look.config.model.dtype
    mean, largest = float(np.abs(first - again).mean()), float(np.abs(first - again).max())
    allowed_mean, allowed_largest = tolerances(dtype)
    seen = f"mean |A| {mean:.2g}, largest {largest:.2g} (allowed {allowed_mean:.2g} and {allowed_largest:.2g})"
    if mean > allowed_mean or largest > allowed_largest:
        return fail("advantage without a hint", seen, Cause.NULL_HINT_NOT_ZERO)
    return ok("advantage without a hint", seen)


def _taught(teacher: TeacherDeps, action: list[int], scores: Scores) -> Finding:
    name = "advantage with a hint"
    advantages_T = scores.hinted - scores.plain
    order = np.argsort(-np.abs(advantages_T))[:NUM_SHOWN]
    rows: list[dict[str, Any]] = [
        {
            "token": teacher.engine.vocabulary.decode([action[place]]),
            "without hint": round(float(scores.plain[place]), 3),
            "with hint": round(float(scores.hinted[place]), 3),
            "advantage": round(float(advantages_T[place]), 3),
        }
        for place in order
    ]
    mean, spread = float(advantages_T.mean()), float(advantages_T.std())
    other = float((scores.otherwise - scores.plain).mean())
    both = bool((advantages_T > 0).any() and (advantages_T < 0).any())
    seen = f"mean {mean:+.3f} nats a token over the action that the hint asks for, spread {spread:.3f}, "
    seen += f"{'both signs' if both else 'one sign'}; under another hint {other:+.3f}"
    if mean < MARGIN or mean - other < MARGIN or spread == 0:
        seen += f"; at least {MARGIN:+.2f} is expected, over none and over the other"
        return fail(name, seen, Cause.TEACHER_IGNORES_HINTS, rows)
    return ok(name, seen, rows)
