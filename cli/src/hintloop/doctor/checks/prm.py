"""The PRM engine, asked by the teacher's own probe; and the services behind `_prm_url`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop.doctor.checks import agreement, serving
from hintloop.doctor.checks.asking import teacher_of
from hintloop.doctor.checks.refused import cause_of
from hintloop.doctor.finding import Finding, Outcome, fail, ok, skipped
from hintloop.doctor.look import Look, address

if TYPE_CHECKING:
    from hintloop_teacher.errors import ProbeError

#: By the teacher's `ProbeReason`.
BY_REASON = {
    "no_scores": Cause.PRM_GIVES_NO_LOGPROBS,
    "shifted": Cause.PRM_SHIFTED,
    "vocabulary": Cause.TOKENIZER_DIFFERS,
    "top_k": Cause.TOP_K_ABOVE_LIMIT,
    "model": Cause.TEACHER_MODEL_MISSING,
    "address": Cause.PRM_ADDRESS_WRONG,
}


async def check_engine(look: Look) -> list[Finding]:
    """Whether the PRM engine can teach this student."""
    from hintloop_teacher.errors import ProbeError

    name = "prm engine"
    try:
        await teacher_of(look)
    except HintloopError as error:
        return [fail(name, str(error), cause_of(str(error)))]
    assert look.teacher is not None
    if not look.teacher.needs.prm_engine:
        return [skipped(name, "this configuration needs none to teach")]
    try:
        report = await look.teacher.engine.prepare()
    except ProbeError as error:
        return [fail(name, str(error), _of_probe(error))]
    except DependencyError as error:
        refused = re.search(r"answered 40[123]\b", error.detail)
        return [fail(name, error.detail, Cause.PRM_ENGINE_KEY_WRONG if refused else Cause.PRM_ENGINE_AWAY)]
    look.teaches = True
    limits = "" if report.limits is None else f", at most {report.limits.max_top_k} candidates a token"
    seen = f"{report.url} ({report.dialect}) serves {report.model}: every token scored and aligned{limits}"
    vocabulary = f"{report.checks['vocabulary']} ({report.vocabulary_size} tokens)"
    return [ok(name, seen), ok("vocabulary", vocabulary)]


def _of_probe(error: ProbeError) -> Cause:
    """What a probe that failed shows; its reason is as fine as programs need it, its message is finer."""
    message = str(error)
    if re.search(r"answered 40[123]\b", message):
        return Cause.PRM_ENGINE_KEY_WRONG
    if "no log-probabilities at temperature 1" in message:
        return Cause.TEMPERATURE_DIFFERS
    return BY_REASON[str(error.reason)]


async def check_service(look: Look) -> list[Finding]:
    """Whether judge and teacher answer where the trainer and others look for them."""
    prm = look.config.prm
    url = f"{address(prm.host, prm.port)}/v1/prm"
    answer = await look.get(url, prm.caller_key.get_secret_value())
    if answer.status == 401:
        return [fail("judge and teacher", f"{url} answered 401", Cause.PRM_KEY_WRONG)]
    parts = answer.document if isinstance(answer.document, dict) else {}
    there = [part for part in ("judge", "teacher") if part in parts]
    if not there:
        return [fail("judge and teacher", answer.problem or f"{url} answered {answer.status}", Cause.PRM_SERVICE_AWAY)]
    findings = [ok("judge and teacher", f"{' and '.join(there)} behind {url}")]
    return [*findings, *await _control(look, parts.get("teacher"))]


async def _control(look: Look, teacher: object) -> list[Finding]:
    """The last null-hint control; one that differed is run again, and what it may come from is looked at."""
    control = teacher.get("control") if isinstance(teacher, dict) else None
    if not isinstance(control, dict):
        return []
    if _wrong(control):
        prm = look.config.prm
        url = f"{address(prm.host, prm.port)}/v1/null_hint_control"
        again = await look.get(url, prm.caller_key.get_secret_value(), method="POST")
        control = again.document if again.status == 200 and isinstance(again.document, dict) else control
    wrong = _wrong(control)
    sides = {name: control.get(name) or {} for name in ("prm", "policy")}
    said = "; ".join(f"{name}: {side.get('status')}, {side.get('detail')}" for name, side in sides.items())
    if not wrong:
        return [ok("null-hint control", said)]
    deeper = []
    if look.teaches and "prm" in wrong:
        deeper = [await agreement.between(look), await agreement.context(look)]
    if "policy" in wrong and look.teacher is not None:
        deeper += await serving.caches(look)
    found = [finding for finding in deeper if finding.outcome is Outcome.FAIL]
    return [*found, fail("null-hint control", said, Cause.NULL_HINT_NOT_ZERO)]


def _wrong(control: dict[str, Any]) -> list[str]:
    return [name for name in ("prm", "policy") if (control.get(name) or {}).get("status") == "differs"]
