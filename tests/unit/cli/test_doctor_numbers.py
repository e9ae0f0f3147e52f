"""What the doctor tells from numbers: temperatures, contexts, renderings, caches. Healthy engines are silent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hintloop.doctor.checks import agreement, prm, rendering, serving
from hintloop.doctor.checks.asking import teacher_of
from hintloop.doctor.finding import Finding
from hintloop.doctor.look import Look, _close_parts, looking
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.looking import Recent
from hintloop_contract.messages import LinkedTurn, Sampling, TurnRecord
from hintloop_contract.tensors import pack

from tests.scripted.attentive_engine import AttentiveEngine
from tests.scripted.scoring_engine import SIZE, rendered, served
from tests.scripted.student import save_student

Checks = Callable[[Look], Awaitable[list[Finding]]]
MESSAGES = '[{"role": "user", "content": "Why is the sea salt, and was it always so?"}]'
PROMPT = [
    ord(char) % SIZE for char in rendered([{"role": "user", "content": "Why is the sea salt, and was it always so?"}])
]


async def looked_at(
    tmp_path: Path, check: Checks, policy: AttentiveEngine, teacher: AttentiveEngine, recent: Recent | None = None
) -> list[Finding]:
    student = save_student(tmp_path / "student")
    async with served(policy), served(teacher):
        path = tmp_path / "config.toml"
        path.write_text(
            f"[model]\nstudent_model_path = '{student}'\ndtype = 'float32'\nmax_seq_len = 400\n"
            f"[rollout]\nengine = 'vllm'\n[policy]\nengines = ['{policy.url}']\n"
            f"[prm]\nprm_url = '{teacher.url}'\ndeadline_s = 60.0\n"
        )
        async with looking(load_config([path], environ={})) as look:
            (fit, *_) = await prm.check_engine(look)
            assert fit.cause is None, fit.seen
            look.spaces[policy.url], look.recent = "processed", recent
            return await check(look)


def captured(prompt: list[int], api: str = "chat_completions", response: Sequence[int] = (1,)) -> Recent:
    recent = Recent()
    for number in range(3):
        turn = LinkedTurn(
            turn_id=f"t{number}", session_id="s", turn_index=0, api=api, engine="vllm", engine_url="http://elsewhere",
            behaviour_space="processed", sampling=Sampling(), version_oldest=1, version_newest=1,
            num_prompt_tokens=len(prompt), num_response_tokens=len(response), captured_ms=0, linked_ms=0,
        )  # fmt: skip
        record = TurnRecord(
            turn_id=turn.turn_id, messages=MESSAGES.encode(), answer=b"{}", prompt_ids=pack(prompt, "int32"),
            response_ids=pack(list(response), "int32"), logprobs=pack([-1.0] * len(response), "float32"),
        )  # fmt: skip
        recent.records[turn.turn_id] = turn, record
    return recent


async def between(look: Look) -> list[Finding]:
    return [await agreement.between(look)]


async def context(look: Look) -> list[Finding]:
    return [await agreement.context(look)]


async def sampling(look: Look) -> list[Finding]:
    return [await agreement.sampling(look, look.config.engine_urls[0])]


CASES: list[tuple[Checks, dict[str, Any], dict[str, Any], Recent | None, Cause | None]] = [
    (between, {}, {}, None, None),
    (between, {}, {"flaws": {"tempered"}}, None, Cause.TEMPERATURE_DIFFERS),
    (between, {"flaws": {"tempered"}}, {}, None, Cause.TEMPERATURE_DIFFERS),
    (between, {}, {"weights": 40.0, "flaws": {"tempered"}}, None, None),
    (sampling, {}, {}, None, None),
    (sampling, {"flaws": {"one temperature"}}, {}, None, Cause.TEMPERATURE_DIFFERS),
    (context, {}, {}, None, None),
    (context, {}, {"flaws": {"cut"}}, None, Cause.TEACHER_CONTEXT_SHORT),
    (context, {}, {"context": 300}, None, Cause.TEACHER_CONTEXT_SHORT),
    (rendering.check, {}, {}, None, None),
    (rendering.check, {"flaws": {"dated template"}}, {}, None, Cause.RENDERING_DIFFERS),
    (rendering.check, {"flaws": {"dated template"}}, {}, captured(PROMPT), None),
    (rendering.check, {}, {}, captured(PROMPT), None),
    (rendering.check, {}, {}, captured([7, *PROMPT]), Cause.RENDERING_DIFFERS),
    (rendering.check, {}, {}, captured([7, *PROMPT], api="completions"), None),
    (serving.caches, {}, {}, captured(PROMPT), None),
    (serving.caches, {"flaws": {"stale cache"}, "remembers": [PROMPT]}, {}, captured(PROMPT), Cause.CACHE_STALE),
    (
        serving.caches,
        {"flaws": {"stale cache"}, "remembers": [[*PROMPT, 5, 6]]},
        {},
        captured(PROMPT, response=[5, 6, 7]),
        Cause.CACHE_STALE,
    ),
    (serving.caches, {"flaws": {"stale cache"}, "remembers": [[1]]}, {}, captured(PROMPT), None),
    (serving.caches, {}, {}, None, None),
]


@pytest.mark.parametrize(("check", "policy", "teacher", "recent", "cause"), CASES)
async def test_what_the_numbers_show(
    tmp_path: Path, check: Checks, policy: Any, teacher: Any, recent: Recent | None, cause: Cause | None
) -> None:
    (finding,) = await looked_at(tmp_path, check, AttentiveEngine(**policy), AttentiveEngine(**teacher), recent)
    assert finding.cause is cause, finding.seen
    assert cause is not None or finding.outcome == ("skipped" if "no turn" in finding.seen else "ok"), finding.seen


async def test_an_engine_that_is_gone_is_no_temperature(tmp_path: Path) -> None:
    async def gone(look: Look) -> list[Finding]:
        look.config.policy.engines[:] = ["http://127.0.0.1:9"]
        await _close_parts(look)
        look.teacher = None
        await teacher_of(look)
        return [await agreement.sampling(look, "http://127.0.0.1:9"), *await serving.caches(look)]

    found = await looked_at(tmp_path, gone, AttentiveEngine(), AttentiveEngine(), captured(PROMPT))
    assert [finding.outcome for finding in found] == ["skipped", "skipped"]


async def test_a_wrong_key_is_named_before_anything_else(tmp_path: Path) -> None:
    student = save_student(tmp_path / "student")
    async with served(AttentiveEngine()) as policy, served(AttentiveEngine(status=401)) as teacher:
        path = tmp_path / "config.toml"
        path.write_text(
            f"[model]\nstudent_model_path = '{student}'\n[policy]\nengines = ['{policy.url}']\n"
            f"[prm]\nprm_url = '{teacher.url}'\ndeadline_s = 60.0\n"
        )
        async with looking(load_config([path], environ={})) as look:
            (finding,) = await prm.check_engine(look)
    assert finding.cause is Cause.PRM_ENGINE_KEY_WRONG
