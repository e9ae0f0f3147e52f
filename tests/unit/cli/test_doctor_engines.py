"""What doctor says of PRM engines: healthy ones, and every flaw that the scripted ones can have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop.doctor.checks import agreement, configuration, prm, teaching
from hintloop.doctor.finding import Finding, fail, ok
from hintloop.doctor.look import Answer, Look, looking
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import Cause

from tests.scripted.scoring_engine import WireEngine, served
from tests.scripted.student import save_student

TOPK = "[advantage]\nestimator = 'grpo'\ncustom_loss_function_path = 'topk_reverse_kl.py'\n[topk_opd]\ntop_k = 32\n"


async def looked_at(tmp_path: Path, engine: WireEngine, more: str = "", prm_keys: str = "") -> list[Finding]:
    path = tmp_path / "config.toml"
    student = save_student(tmp_path / "student")
    async with served(WireEngine("vllm")) as policy_engine, served(engine):
        path.write_text(
            f"[model]\nstudent_model_path = '{student}'\ndtype = 'float32'\n"
            f"[rollout]\nengine = 'vllm'\n[policy]\nengines = ['{policy_engine.url}']\n"
            f"[prm]\nprm_url = '{engine.url}'\ndeadline_s = 60.0\n{prm_keys}\n{more}"
        )
        async with looking(load_config([path], environ={})) as look:
            return [*await configuration.check(look), *await prm.check_engine(look), *await teaching.check(look)]


def causes(findings: list[Finding]) -> list[Cause]:
    return [finding.cause for finding in findings if finding.cause is not None and finding.outcome != "warn"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_an_engine_that_scores_is_fit_and_one_that_ignores_the_hint_teaches_nothing(
    tmp_path: Path, kind: str
) -> None:
    findings = await looked_at(tmp_path, WireEngine(kind))
    by_check = {finding.check: finding for finding in findings}
    assert "every token scored and aligned" in by_check["prm engine"].seen
    assert "equal to the student's" in by_check["vocabulary"].seen
    assert by_check["advantage without a hint"].outcome == "ok"
    # What this engine says of a token depends on nothing but the token before it.
    assert causes(findings) == [Cause.TEACHER_IGNORES_HINTS]
    rows = by_check["advantage with a hint"].rows
    assert len(rows) == 10
    assert all(row["advantage"] == pytest.approx(row["with hint"] - row["without hint"], abs=2e-3) for row in rows)


@pytest.mark.parametrize(
    ("engine", "more", "prm_keys", "cause"),
    [
        (WireEngine("vllm", flaws={"no logprobs"}), "", "", Cause.PRM_GIVES_NO_LOGPROBS),
        (WireEngine("chat"), "", "", Cause.PRM_GIVES_NO_LOGPROBS),
        (WireEngine("sglang", flaws={"holes"}), "", "", Cause.PRM_GIVES_NO_LOGPROBS),
        (WireEngine("sglang", flaws={"shifted"}), "", "", Cause.PRM_SHIFTED),
        (WireEngine("vllm", flaws={"other tokenizer"}), "", "", Cause.TOKENIZER_DIFFERS),
        (WireEngine("vllm", max_top_k=20), TOPK, "", Cause.TOP_K_ABOVE_LIMIT),
        (WireEngine("sglang", max_top_k=20, flaws={"breaks at too many"}), TOPK, "", Cause.TOP_K_ABOVE_LIMIT),
        (WireEngine("vllm"), "", "teacher_model = 'other'", Cause.TEACHER_MODEL_MISSING),
        (WireEngine("vllm", status=503), "", "", Cause.PRM_ENGINE_AWAY),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_flaw_is_named(tmp_path: Path, engine: WireEngine, more: str, prm_keys: str, cause: Cause) -> None:
    findings = await looked_at(tmp_path, engine, more, prm_keys)
    assert causes(findings)[0] is cause
    assert findings[-1].outcome == "skipped"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (fail("teacher's context", "cut", Cause.TEACHER_CONTEXT_SHORT), Cause.TEACHER_CONTEXT_SHORT),
        (ok("teacher's context", "reads all"), Cause.NULL_HINT_NOT_ZERO),
    ],
)
async def test_what_a_control_that_differs_comes_from_is_named_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Finding, expected: Cause
) -> None:
    async def told(look: Look) -> Finding:
        return seen

    async def same(look: Look) -> Finding:
        return ok("temperature", "the same")

    async def answered(self: Look, *_: object, **__: object) -> Answer:
        control = {"prm": {"status": "differs", "detail": "of the reference"}, "policy": {"status": "equal"}}
        return Answer(200, {"teacher": {"control": control}, **control})

    monkeypatch.setattr(agreement, "context", told)
    monkeypatch.setattr(agreement, "between", same)
    monkeypatch.setattr(Look, "get", answered)
    (tmp_path / "config.toml").write_text("")
    async with looking(load_config([tmp_path / "config.toml"], environ={})) as look:
        look.teaches = True
        assert causes(await prm.check_service(look))[0] is expected
