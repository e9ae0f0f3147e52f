"""What becomes of a turn when the PRM engine, or what it is asked with, is wrong. No wrong number leaves.

Three outcomes: the turn waits until the engine can teach again, the turn drops with its reason, or the teacher refuses
to start. Never a sample with other numbers, never a turn in `dead` for what the engine did.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.streams import DEAD, JUDGED, SAMPLES
from hintloop_teacher.app import TeacherDeps
from hintloop_teacher.errors import ProbeError
from hintloop_teacher.http import Patience
from hintloop_teacher.wiring import build_deps, run_worker

from tests.scripted.scoring_engine import WireEngine, rendered

from .conftest import HINT, MESSAGES, check_sample, judged

TOPK: dict[str, Any] = {"training": {"custom_loss_path": "topk_reverse_kl.py"}, "topk_opd": {"top_k": 4}}
TOOLS_SPOKE = [*MESSAGES, {"role": "assistant", "content": "look"}, {"role": "tool", "content": "out"}]


def config_of(student_dir: str, policy: WireEngine, prm: WireEngine, **changes: dict[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {
        "model": {"student_model_path": student_dir},
        "rollout": {"engine": "vllm"},
        "policy": {"engines": [policy.url]},
        "opd": {"hint_format": "\n[hint] {hint}"},
        "redis": {"claim_idle_ms": 1000},
        "prm": {"prm_url": prm.url, "timeout_s": 1.0, "deadline_s": 4.0, "circuit_open_s": 0.2},
    }
    for name, section in changes.items():
        sections[name] = {**sections.get(name, {}), **section}
    return Config.model_validate(sections)


@asynccontextmanager
async def teaching(config: Config, broker: RedisBroker) -> AsyncIterator[TeacherDeps]:
    """The teacher at work, its engine probed."""
    deps = await build_deps(config, broker)
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(deps, stop))
    try:
        async with asyncio.timeout(60):
            while deps.engine.report is None and not worker.done():
                await asyncio.sleep(0.02)
        yield deps
    finally:
        stop.set()
        await worker


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, and a teacher that was just probed looks again all the same."""
    monkeypatch.setattr("hintloop_teacher.engine.LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr("hintloop_teacher.wiring.Patience", partial(Patience, wait_s=0.01))
    monkeypatch.setattr("hintloop_contract.worker.MAX_BACKOFF_S", 0.2)


async def until(found: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while True:
            if (value := await found()) or value == 0:
                return value
            await asyncio.sleep(0.02)


async def sampled(broker: RedisBroker) -> Sample:
    async def read() -> Any:
        return await broker.read(SAMPLES, "test", 10, 50)

    (entry,) = await until(read)
    assert isinstance(entry.message, Sample)
    return entry.message


async def dropped(broker: RedisBroker) -> dict[tuple[str, str], int]:
    async def drops() -> Any:
        return (await broker.funnel()).drops

    found: dict[tuple[str, str], int] = await until(drops)
    return found


async def lengths(broker: RedisBroker) -> dict[str, int]:
    return {stream.name: (await broker.counts(stream)).length for stream in (JUDGED, SAMPLES, DEAD)}


WAITED_FOR: dict[str, Callable[[WireEngine], None]] = {
    "no log-probabilities": lambda engine: engine.flaws.add("no logprobs"),
    "null entries": lambda engine: engine.flaws.update({"holes", "null entries"}),
    "null values": lambda engine: engine.flaws.add("holes"),
    "not a number": lambda engine: engine.flaws.add("not a number"),
    "wrong length": lambda engine: engine.flaws.add("short"),
    "K above the limit": lambda engine: setattr(engine, "max_top_k", 2),
    "429": lambda engine: setattr(engine, "status", 429),
    "500": lambda engine: setattr(engine, "status", 500),
    "wrong key": lambda engine: setattr(engine, "status", 401),
    "route gone": lambda engine: setattr(engine, "status", 404),
    "timeout": lambda engine: engine.flaws.add("hangs"),
    "slow drip": lambda engine: engine.flaws.add("drips"),
    "garbage JSON": lambda engine: engine.flaws.add("garbage"),
}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("vllm", fault) for fault in WAITED_FOR]
    + [("sglang", fault) for fault in ("no log-probabilities", "null values", "wrong length")],
)
async def test_turns_wait_for_an_engine_that_can_teach_again(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, fault: str, kind: str
) -> None:
    prm.kind = kind
    async with teaching(config_of(student_dir, policy, prm, **TOPK), broker):
        as_it_was = (prm.status, prm.max_top_k, set(prm.flaws))
        WAITED_FOR[fault](prm)
        asked = len(prm.paths)
        await judged(broker, "turn")

        async def asked_often() -> bool:
            return len(prm.paths) >= asked + 2

        await until(asked_often)
        await asyncio.sleep(0.3)
        assert await lengths(broker) == {"judged": 1, "samples": 0, "dead": 0}
        prm.status, prm.max_top_k, prm.flaws = as_it_was
        sample = await sampled(broker)
    check_sample(sample)
    assert sample.teacher_topk_ids is not None and sample.teacher_topk_ids.shape == (4, 4)
    assert (await broker.funnel()).drops == {}
    assert (await lengths(broker))["dead"] == 0


DROPPED: dict[str, tuple[str, set[str], str]] = {
    "a null in this turn": ("vllm", {"holes"}, "teacher_missing"),
    "a null entry in this turn": ("vllm", {"holes", "null entries"}, "teacher_missing"),
    "a value that is no number": ("sglang", {"not a number"}, "teacher_missing"),
    "one entry short": ("vllm", {"short"}, "teacher_misaligned"),
    "one entry short on SGLang": ("sglang", {"short"}, "teacher_misaligned"),
    "candidates that are not the best": ("vllm", {"least likely candidates"}, "teacher_misaligned"),
}


@pytest.mark.parametrize("fault", DROPPED)
async def test_a_turn_whose_scores_are_wrong_drops_while_the_engine_still_passes(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, fault: str
) -> None:
    kind, flaws, reason = DROPPED[fault]
    prm.kind, prm.flaws, prm.wrong_from = kind, set(flaws), 40
    async with teaching(config_of(student_dir, policy, prm, **TOPK), broker):
        await judged(broker, "long")
        assert await dropped(broker) == {("teach", reason): 1}
        # A shorter one is scored rightly by the same engine.
        prm.wrong_from = 1000
        await judged(broker, "next")
        check_sample(await sampled(broker))
    assert await lengths(broker) == {"judged": 0, "samples": 1, "dead": 0}


async def test_longer_than_the_context_drops_whether_the_engine_tells_it_or_not(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str
) -> None:
    prm.context, prm.flaws = 64, {"no limit"}
    async with teaching(config_of(student_dir, policy, prm), broker):
        await judged(broker, "turn", hint=HINT * 3)
        assert await dropped(broker) == {("teach", "too_long"): 1}
        await judged(broker, "shorter", hint="Be brief!!")
        check_sample(await sampled(broker))


START: dict[str, tuple[str, set[str], str]] = {
    "another tokenizer": ("vllm", {"other tokenizer"}, "otherwise than the student's"),
    "no log-probabilities": ("sglang", {"no logprobs"}, "cannot score given tokens"),
    "off by one": ("sglang", {"shifted"}, "shifted"),
    "off by one on vLLM": ("vllm", {"shifted"}, "shifted"),
    "a chat API": ("chat", set(), "It can judge, but not teach"),
    "covers the generated token": ("completions", {"covers the generated token"}, "those it generated itself"),
}


@pytest.mark.parametrize("fault", START)
async def test_an_engine_that_cannot_teach_is_refused_at_start(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, fault: str
) -> None:
    prm.kind, prm.flaws, words = START[fault]
    await judged(broker, "turn")
    deps = await build_deps(config_of(student_dir, policy, prm), broker)
    with pytest.raises(ProbeError, match=words):
        await run_worker(deps, asyncio.Event())
    assert deps.engine.problem is not None
    assert await lengths(broker) == {"judged": 1, "samples": 0, "dead": 0}


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [("<system>old;" + rendered(MESSAGES), None), ("<s>ask</s>", "render_mismatch"), ("<user>ask;", "render_mismatch")],
)
async def test_another_template_is_spliced_where_that_is_clear_or_drops(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, prompt: str, reason: str | None
) -> None:
    policy.flaws = {"other template"}
    async with teaching(config_of(student_dir, policy, prm), broker):
        await judged(broker, "turn", prompt=prompt)
        if reason is not None:
            assert await dropped(broker) == {("teach", reason): 1}
            assert (await lengths(broker))["samples"] == 0
            return
        check_sample(await sampled(broker), num_hinted=len(prompt) + len("\n[hint] ") + len(HINT))


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_turns_without_messages_are_hinted_by_the_templates_markers_or_keep_their_score(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, api: str
) -> None:
    config = config_of(student_dir, policy, prm, advantage={"estimator": "combine"})
    served = "<user>one;<assistant>two;<user>ask;<assistant>"
    async with teaching(config, broker):
        await judged(broker, "templated", api=api, messages=[], prompt=served)
        check_sample(await sampled(broker), num_hinted=len(served) + len("\n[hint] ") + len(HINT))
        await judged(broker, "bare", api=api, messages=[], prompt="Once upon a time>")
        bare = await sampled(broker)
    assert (bare.teacher_logprobs, bare.score, bare.hint) == (None, -1, HINT)


@pytest.mark.parametrize("estimator", ["on_policy_distillation"])
async def test_turns_without_messages_and_markers_drop_where_a_hint_is_needed(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, estimator: str
) -> None:
    async with teaching(config_of(student_dir, policy, prm, advantage={"estimator": estimator}), broker):
        await judged(broker, "bare", api="completions", messages=[], prompt="Once upon a time>")
        assert await dropped(broker) == {("teach", "no_hint_place"): 1}


@pytest.mark.parametrize("place", ["last_user", "last_message"])
async def test_the_hint_stands_where_it_is_configured_also_when_tools_spoke_last(
    broker: RedisBroker, policy: WireEngine, prm: WireEngine, student_dir: str, place: str
) -> None:
    async with teaching(config_of(student_dir, policy, prm, opd={"hint_place": place}), broker):
        await judged(broker, "turn", messages=TOOLS_SPOKE)
        check_sample(await sampled(broker))
    carrying = TOOLS_SPOKE[0 if place == "last_user" else 2]["content"]
    scored = "".join(map(chr, prm.bodies[-1]["prompt"]))
    assert scored == rendered(TOOLS_SPOKE).replace(carrying, f"{carrying}\n[hint] {HINT}", 1) + "No.;"
