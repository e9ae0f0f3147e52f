"""The PRM engine, asked by the teacher's own probe; and the services behind `_prm_url`."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop.doctor.finding import Finding, fail, ok, skipped
from hintloop.doctor.look import Look, address

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
    from hintloop_teacher.wiring import build_deps

    name = "prm engine"
    try:
        look.teacher = await build_deps(look.config, look.broker, directory=look.loaded.directory)
    except HintloopError as error:
        return [fail(name, str(error), Cause.CONFIGURATION_INVALID)]
    if not look.teacher.needs.prm_engine:
        return [skipped(name, "this configuration needs none to teach")]
    try:
        report = await look.teacher.engine.prepare()
    except ProbeError as error:
        return [fail(name, str(error), BY_REASON[str(error.reason)])]
    except DependencyError as error:
        return [fail(name, error.detail, Cause.PRM_ENGINE_AWAY)]
    look.teaches = True
    limits = "" if report.limits is None else f", at most {report.limits.max_top_k} candidates a token"
    seen = f"{report.url} ({report.dialect}) serves {report.model}: every token scored and aligned{limits}"
    vocabulary = f"{report.checks['vocabulary']} ({report.vocabulary_size} tokens)"
    return [ok(name, seen), ok("vocabulary", vocabulary)]


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
    return [ok("judge and teacher", f"{' and '.join(there)} behind {url}"), *_control(parts.get("teacher"))]


def _control(teacher: object) -> list[Finding]:
    control = teacher.get("control") if isinstance(teacher, dict) else None
    if not isinstance(control, dict):
        return []
    sides = {name: control.get(name) or {} for name in ("prm", "policy")}
    wrong = [name for name, side in sides.items() if side.get("status") == "differs"]
    said = "; ".join(f"{name}: {side.get('status')}, {side.get('detail')}" for name, side in sides.items())
    if wrong:
        return [fail("null-hint control", said, Cause.NULL_HINT_NOT_ZERO)]
    return [ok("null-hint control", said)]
