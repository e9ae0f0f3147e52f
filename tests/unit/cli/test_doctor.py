"""What doctor makes of what it sees; the engines' side is in the integration tests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from aiohttp import web
from hintloop.commands import app
from hintloop.doctor import stations
from hintloop.doctor.checks import configuration, judging, learning, loss, policy, prm, redis, traffic, training
from hintloop.doctor.finding import Finding, Outcome
from hintloop.doctor.look import Look, looking
from hintloop.funnel import Snapshot
from hintloop_contract.broker import StreamCounts, WeightsState
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.diagnosis.figures import Seen
from hintloop_contract.messages import Judgement, Vote
from hintloop_contract.streams import FUNNEL, STREAMS
from hintloop_judge.backends import Opinion
from hintloop_teacher.errors import ProbeReason

ROOT = Path(__file__).parents[3]
Check = Callable[[Look], Awaitable[list[Finding]]]


def write_config(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text)
    return path


async def findings_of(check: Check, directory: Path, text: str = "", snapshot: Snapshot | None = None) -> list[Finding]:
    async with looking(load_config([write_config(directory, text)], environ={})) as look:
        look.snapshot = snapshot
        look.seen = None if snapshot is None else seen_in(snapshot)
        return await check(look)


def seen_in(snapshot: Snapshot) -> Seen:
    return Seen(
        funnel=snapshot.steps,
        drops=snapshot.drops,
        streams=snapshot.streams,
        trainer=snapshot.trainer,
        weights=snapshot.weights,
        engines=snapshot.engines,
    )


def causes(findings: list[Finding]) -> list[tuple[str, Cause | None]]:
    return [(str(finding.outcome), finding.cause) for finding in findings]


def snapshot(**changes: Any) -> Snapshot:
    steps = dict.fromkeys(FUNNEL, 0) | changes.pop("steps", {})
    streams = {stream.name: StreamCounts(0, 0) for stream in STREAMS}
    return Snapshot(steps=steps, streams=streams, **changes)


def test_every_cause_is_explained_and_documented() -> None:
    assert set(EXPLANATIONS) == set(Cause)
    page = (ROOT / "docs" / "doctor.md").read_text()
    rows = [f"| `{cause}` | {told.cause} | {told.fix} |" for cause, told in EXPLANATIONS.items()]
    assert [row for row in rows if row not in page] == []
    assert all(f"`{name}`" in page for name in (*stations.NAMES, stations.ACTIVE.name))
    parameters = typer.main.get_command(app).commands["doctor"].params  # type: ignore[attr-defined]
    own = {option for parameter in parameters for option in parameter.opts} - {"--state-dir", "--overlay"}
    assert [option for option in own if option not in page] == []


def test_every_reason_of_the_teachers_probe_has_a_cause() -> None:
    assert set(prm.BY_REASON) == {str(reason) for reason in ProbeReason}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[opd]\nenable_hint_extraction = false", ("fail", Cause.HINTS_SWITCHED_OFF)),
        ("[opd]\ndrop_sample_without_hint = false", ("warn", Cause.UNHINTED_TURNS_TRAINED)),
        ("[advantage]\ncustom_loss_function_path = 'nowhere.py'", ("fail", Cause.CUSTOM_LOSS_MISSING)),
        ("[opd]\njudge_temperature = 0.0\njudge_vote_count = 3", ("warn", Cause.EQUAL_VOTES)),
        ("", ("fail", Cause.STUDENT_UNREADABLE)),
    ],
)
async def test_the_configuration(tmp_path: Path, text: str, expected: tuple[str, Cause]) -> None:
    assert expected in causes(await findings_of(configuration.check, tmp_path, text))


async def test_a_method_that_learns_from_scores_needs_no_hints(tmp_path: Path) -> None:
    text = "[advantage]\nestimator = 'grpo'\n[opd]\nenable_hint_extraction = false"
    found = causes(await findings_of(configuration.check, tmp_path, text))
    assert ("fail", Cause.HINTS_SWITCHED_OFF) not in found


async def test_an_absent_redis_is_named_and_what_needs_it_is_skipped(tmp_path: Path) -> None:
    text = "[redis]\nurl = 'redis://127.0.0.1:9/0'"
    assert causes(await findings_of(redis.check, tmp_path, text)) == [("fail", Cause.REDIS_AWAY)]
    for check in (training.check_running, training.check_published, learning.check, traffic.check):
        (finding,) = await findings_of(check, tmp_path, text)
        assert finding.outcome is Outcome.SKIPPED


@pytest.fixture
async def proxy() -> Any:
    """A proxy's readiness page; the test sets its engines."""
    engines: list[dict[str, Any]] = []

    async def ready(_: web.Request) -> web.Response:
        return web.json_response({"ready": True, "engines": engines}, status=503)

    service = web.Application()
    service.router.add_get("/hintloop/ready", ready)
    runner = web.AppRunner(service)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield engines, f"[proxy]\nhost = '127.0.0.1'\nport = {runner.addresses[0][1]}"
    await runner.cleanup()


ENGINE = {
    "url": "http://e",
    "healthy": True,
    "model": "m",
    "behaviour_space": "processed",
    "defaults_neutral": True,
    "problem": None,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("ok", None)),
        ({"healthy": False}, ("fail", Cause.POLICY_ENGINE_AWAY)),
        ({"behaviour_space": None, "problem": "gave no ids"}, ("fail", Cause.CAPTURE_UNPROVEN)),
        ({"defaults_neutral": False}, ("warn", Cause.SAMPLING_DEFAULTS_UNPROVEN)),
    ],
)
async def test_policy_engines(tmp_path: Path, proxy: Any, changes: dict[str, Any], expected: Any) -> None:
    engines, text = proxy
    engines.append(ENGINE | changes)
    assert causes(await findings_of(policy.check, tmp_path, text)) == [("ok", None), expected]


async def test_nobody_at_the_proxys_and_the_services_address(tmp_path: Path) -> None:
    text = "[proxy]\nport = 9\n[prm]\nport = 9"
    assert causes(await findings_of(policy.check, tmp_path, text)) == [("fail", Cause.PROXY_AWAY)]
    assert causes(await findings_of(prm.check_service, tmp_path, text)) == [("fail", Cause.PRM_SERVICE_AWAY)]


RULES = "[prm]\njudge_backend = 'rules'\n[advantage]\nestimator = 'combine'"


async def test_the_rules_judge_the_built_in_exchanges_as_a_person_would(tmp_path: Path) -> None:
    found = await findings_of(judging.check, tmp_path, RULES)
    assert causes(found) == [("ok", None)] * 3


class FixedBackend:
    """A judge that says the same to every exchange."""

    name, model = "llm", "m"

    def __init__(self, opinion: Opinion) -> None:
        self.opinion = opinion

    async def judge(self, *_: object, **__: object) -> Opinion:
        return self.opinion

    async def close(self) -> None:
        pass


def opinion(score: int | None = None, hint: str | None = None, failed: str = "") -> Opinion:
    votes = [Vote(score=score, hint=hint, failed=failed or None)]
    judgement = Judgement(backend="llm", model="m", score=score, hint=hint, votes=votes)
    return Opinion(judgement, frozenset(("hint", "score")) if failed else frozenset())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (opinion(-1, None), Cause.NO_HINTS),
        (opinion(-1, "Do better next time, please."), Cause.HINTS_NOT_CONCRETE),
        (opinion(-1, "Be short. Be brief. Multiply. Convert."), Cause.HINTS_NOT_CONCRETE),
        (opinion(1, "One short sentence; multiply by 1.609."), Cause.SCORES_WRONG),
        (opinion(failed="cut by the token limit (prm.hint_max_tokens)"), Cause.VOTES_CUT),
        (opinion(failed="no number in a box"), Cause.VOTES_FAIL),
    ],
)
async def test_a_judge_that_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Opinion, expected: Cause
) -> None:
    monkeypatch.setattr("hintloop_judge.wiring._backend", lambda *_: FixedBackend(said))
    found = await findings_of(judging.check, tmp_path, RULES)
    failures = [finding.cause for finding in found if finding.outcome is Outcome.FAIL]
    assert failures and failures[0] is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, Cause.JUDGE_KEY_WRONG), (404, Cause.JUDGE_MODEL_MISSING), (None, Cause.JUDGE_ENGINE_AWAY)],
)
async def test_a_judges_engine_that_does_not_answer(tmp_path: Path, status: int | None, expected: Cause) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=status or 200)

    service = web.Application()
    service.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(service)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1] if status else 9
    text = f"[prm]\nprm_url = 'http://127.0.0.1:{port}'\njudge_backend = 'llm'\njudge_model = 'm'\ndeadline_s = 60.0"
    try:
        assert causes(await findings_of(judging.check, tmp_path, text)) == [("fail", expected)]
    finally:
        await runner.cleanup()


def student(directory: Path, *, layers: int, hidden: int) -> str:
    config = {"model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": hidden}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "hidden_act": "silu"}
    (directory / "config.json").write_text(json.dumps(config | sizes))
    return f"[model]\nstudent_model_path = '{directory}'\nmax_seq_len = 128"


async def test_training_setup(tmp_path: Path) -> None:
    found = await findings_of(loss.check, tmp_path, student(tmp_path, layers=1, hidden=64))
    assert [finding.check for finding in found] == ["loss", "model", "memory"]
    assert causes(found) == [("ok", None)] * 3
    found = await findings_of(loss.check, tmp_path, student(tmp_path, layers=2000, hidden=4096))
    assert causes(found)[2] == ("warn", Cause.MEMORY_SHORT)
    assert found[2].rows[0]["saves, GiB"] >= found[2].rows[-1]["saves, GiB"] > 0


async def test_a_layout_that_the_student_cannot_be_divided_by(tmp_path: Path) -> None:
    layout = "\n[training]\ntensor_model_parallel_size = 3"
    found = await findings_of(loss.check, tmp_path, student(tmp_path, layers=1, hidden=64) + layout)
    assert causes(found)[2:] == [("fail", Cause.LAYOUT_DOES_NOT_FIT)]
    assert "tensor_model_parallel_size 3 does not divide the student's 4 attention heads" in found[2].seen


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({}, ("fail", Cause.TRAINER_AWAY)),
        ({"phase": "collecting", "step": "3"}, ("ok", None)),
        ({"phase": "failed"}, ("fail", Cause.TRAINER_AWAY)),
        ({"phase": "publishing failed", "detail": "no answer"}, ("fail", Cause.WEIGHTS_NEVER_PUBLISHED)),
        ({"phase": "counting failed", "detail": "no answer"}, ("fail", Cause.TRAINER_STUCK)),
        ({"phase": "paused"}, ("warn", Cause.TRAINING_PAUSED)),
    ],
)
async def test_the_trainer(tmp_path: Path, trainer: dict[str, str], expected: Any) -> None:
    found = await findings_of(training.check_running, tmp_path, snapshot=snapshot(trainer=trainer))
    assert causes(found) == [expected]


@pytest.mark.parametrize(
    ("weights", "engines", "step", "expected"),
    [
        (WeightsState(7), {"http://a": "7", "http://b": "7"}, "3", ("ok", None)),
        (WeightsState(7), {"http://a": "7", "http://b": ""}, "3", ("fail", Cause.ENGINE_BEHIND)),
        (WeightsState(7, 8), {"http://a": "7", "http://b": "8"}, "3", ("ok", None)),
        (WeightsState(), {}, "3", ("fail", Cause.WEIGHTS_NEVER_PUBLISHED)),
        (WeightsState(), {}, "0", ("skipped", None)),
    ],
)
async def test_published_weights(
    tmp_path: Path, weights: WeightsState, engines: dict[str, str], step: str, expected: Any
) -> None:
    seen = snapshot(weights=weights, engines=engines, trainer={"step": step})
    text = "[policy]\nengines = ['http://a', 'http://b']"
    found = causes(await findings_of(training.check_published, tmp_path, text, snapshot=seen))
    assert [one for one in found if one[0] != "skipped"] or found == [expected]
    assert found[0] == expected


def figures(step: int, mean: float, std: float, positive: float, negative: float, drift: float = 0.0) -> dict[str, str]:
    return {
        "step": str(step),
        "run_advantage_mean": str(mean),
        "run_advantage_std": str(std),
        "run_advantage_share_positive": str(positive),
        "run_advantage_share_negative": str(negative),
        "engine_difference_abs_mean": str(drift),
    }


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"step": "0"}, []),
        (figures(3, -0.2, 0.9, 0.4, 0.6), [("ok", None), ("ok", None)]),
        (figures(3, 0.0, 0.0, 0.0, 0.0), [("fail", Cause.ADVANTAGES_ALL_ZERO)]),
        (figures(12, -1.0, 0.0, 0.0, 1.0), [("warn", Cause.ADVANTAGES_ONE_SIGN)]),
        (figures(12, -9.0, 14.0, 0.1, 0.9), [("fail", Cause.ADVANTAGES_EXPLODE)]),
        (figures(12, -0.2, 0.9, 0.4, 0.6, 0.3), [("warn", Cause.ENGINE_DRIFT)]),
    ],
)
async def test_the_learning_signal(tmp_path: Path, trainer: dict[str, str], expected: Any) -> None:
    found = await findings_of(learning.check, tmp_path, snapshot=snapshot(trainer=trainer))
    assert causes(found) == [*expected, ("not yet", None)]


@pytest.mark.parametrize(
    ("steps", "drops", "expected"),
    [
        ({}, {}, ("not yet", None)),
        ({"captured": 40, "linked": 38}, {"linker:side": 30}, ("ok", None)),
        ({"captured": 10, "linked": 0}, {"linker:no_next_state": 5}, ("ok", None)),
        ({"captured": 40, "linked": 4}, {"linker:no_next_state": 30}, ("fail", Cause.SESSION_TIMEOUT_SHORT)),
        ({"captured": 40}, {"linker:no_next_state": 40}, ("fail", Cause.TURNS_NOT_CONTINUED)),
        ({"captured": 40, "linked": 40}, {"judge:stale": 10, "train:stale": 15}, ("warn", Cause.SAMPLES_STALE)),
        ({"captured": 40, "linked": 40}, {"teach:too_long": 30}, ("warn", Cause.TURNS_DROPPED)),
    ],
)
async def test_traffic(tmp_path: Path, steps: dict[str, int], drops: dict[str, int], expected: Any) -> None:
    found = await findings_of(traffic.check, tmp_path, snapshot=snapshot(steps=steps, drops=drops))
    assert causes(found) == [expected, ("skipped", None)]
