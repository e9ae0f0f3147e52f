"""Which engines a replay needs, which it takes as configured, and what it decides whatever is configured."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hintloop.errors import CommandError
from hintloop.local import ports
from hintloop.local.processes import ProcessSpec, Supervisor
from hintloop.local.resolution import Sources
from hintloop.replay.engines import Engines, answers, engine_needs
from hintloop.replay.side import Place, own_flags
from hintloop.replay.store import Store
from hintloop.replay.until import Until
from hintloop_contract.config import load_config

BINARY, OPD = {"advantage.estimator": "grpo"}, {"advantage.estimator": "on_policy_distillation"}
RULES = {"prm.judge_backend": "rules"}
OTHER_JUDGE = {"prm.judge_url": "http://judge:1"}
OTHER_TEACHER = {"prm.teacher_url": "http://teacher:2"}
OWN_TEACHER = {"prm.teacher_source": "trainer"}


@pytest.mark.parametrize(
    ("flags", "until", "policy", "prm", "others"),
    [
        (RULES | OPD, Until.JUDGE, False, False, []),
        (OPD, Until.JUDGE, False, True, []),
        (OPD | OTHER_JUDGE, Until.JUDGE, False, False, ["prm.judge_url"]),
        (RULES | OPD, Until.TEACHER, True, True, []),
        (RULES | OPD | OTHER_TEACHER, Until.TRAINER, True, False, ["prm.teacher_url"]),
        (OPD | OTHER_TEACHER, Until.TRAINER, True, True, ["prm.teacher_url"]),
        (RULES | BINARY, Until.TRAINER, False, False, []),
        # The trainer scores by itself; the policy engine still renders the hint.
        (RULES | OPD | OWN_TEACHER, Until.TRAINER, True, False, []),
    ],
)
def test_only_what_is_asked_needs_an_engine(
    flags: dict[str, str], until: Until, policy: bool, prm: bool, others: list[str]
) -> None:
    needs = engine_needs(load_config(environ={}, flags=flags).config, Path(), until)
    assert (needs.policy, needs.prm, [key for key, _, _ in needs.others]) == (policy, prm, others)


@pytest.fixture
async def there() -> AsyncIterator[str]:
    """The address of something that answers."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_whoever_answers_at_all_answers(there: str) -> None:
    assert await answers(there)
    assert await answers(f"{there}/v1")
    assert not await answers("http://127.0.0.1:9")


class Started:
    """A supervisor that starts nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.listener = lambda *_: None

    async def start(self, spec: ProcessSpec) -> None:
        self.started.append(" ".join(map(str, spec.command)))

    async def wait_ready(self, *names: str) -> None:
        self.names = names

    async def stop(self, *names: str) -> None:
        self.stopped += names

    async def run_tool(self, name: str, command: list[str]) -> str:
        return "/"


def model(folder: Path) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512}), encoding="utf-8")
    return str(folder)


def made(supervisor: Any) -> Engines:
    return Engines(supervisor, "vllm", 64)


async def test_engines_that_answer_are_taken_as_configured(there: str) -> None:
    flags = {
        **RULES,
        **OPD,
        "policy.engines": json.dumps([there]),
        "prm.prm_url": there,
        "model.student_model_path": "m",
    }
    supervisor = Started()
    assert await made(supervisor).flags(load_config(environ={}, flags=flags), Until.TRAINER) == {}
    assert supervisor.started == []


async def test_what_is_not_configured_is_started_and_shared(tmp_path: Path) -> None:
    flags = {**RULES, **OPD, "model.student_model_path": model(tmp_path / "m"), "model.dtype": "float32"}
    supervisor = Started()
    engines = made(supervisor)
    first = await engines.flags(load_config(environ={}, flags=flags), Until.TRAINER)
    assert [command.count("--role policy") for command in supervisor.started] == [1, 0]
    assert first.keys() == {"policy.engines", "prm.prm_url", "prm.engine"}
    # Another method on the same model wants the same engines.
    second = await engines.flags(
        load_config(environ={}, flags={**flags, "advantage.estimator": "combine"}), Until.TRAINER
    )
    assert second == first
    assert len(supervisor.started) == 2
    # One that learns from scores by rules wants none.
    assert await engines.flags(load_config(environ={}, flags={**flags, **BINARY}), Until.TRAINER) == {}
    assert len(supervisor.stopped) == 2


async def test_a_configured_engine_of_this_machine_is_started_where_it_should_be(tmp_path: Path) -> None:
    (port,) = ports.choose(1)
    flags = {
        **RULES,
        **OPD,
        **OTHER_TEACHER,
        "model.student_model_path": model(tmp_path / "m"),
        "rollout.sglang_port": str(port),
    }
    supervisor = Started()
    with pytest.raises(CommandError, match=r"prm\.teacher_url = 'http://teacher:2' does not answer"):
        await made(supervisor).flags(load_config(environ={}, flags=flags), Until.TRAINER)
    del flags["prm.teacher_url"]
    found = await made(supervisor).flags(load_config(environ={}, flags=flags), Until.TRAINER)
    assert found["policy.engines"] == json.dumps([f"http://127.0.0.1:{port}"])


@pytest.mark.parametrize(
    "flags",
    [
        {"policy.engines": '["http://192.0.2.1:1"]'},
        {"policy.engines": '["http://127.0.0.1:9", "http://127.0.0.1:10"]'},
        {"prm.prm_url": "http://192.0.2.1:1"},
    ],
)
async def test_an_engine_elsewhere_that_does_not_answer_is_an_error(flags: dict[str, str], monkeypatch: Any) -> None:
    async def nobody(address: str, key: str = "") -> bool:
        return False

    monkeypatch.setattr("hintloop.replay.engines.answers", nobody)
    loaded = load_config(environ={}, flags={**RULES, **OPD, **flags, "model.student_model_path": "m"})
    with pytest.raises(CommandError, match="does not answer; start it, or leave"):
        await made(Started()).flags(loaded, Until.TRAINER)


def test_nothing_of_a_deployment_is_touched_whatever_its_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = {
        "HINTLOOP_REDIS__URL": "redis://live:6379/0",
        "HINTLOOP_POLICY__NAME": "live",
        "HINTLOOP_PUBLISHING__TRANSPORT": "process_group",
        "HINTLOOP_PUBLISHING__WEIGHTS_DIR": "/live/weights",
        "HINTLOOP_TRAINING__CHECKPOINT_DIR": "/live/checkpoints",
        "HINTLOOP_PRM__GRPC_ADDRESS": "live:18011",
        "HINTLOOP_METRICS__PORT": "18030",
        "HINTLOOP_METRICS__WANDB_PROJECT": "live",
        "HINTLOOP_METRICS__TENSORBOARD_DIR": "/live/tensorboard",
        "HINTLOOP_TRAINING__MAX_STALENESS_STEPS": "4",
    }
    for name, value in deployment.items():
        monkeypatch.setenv(name, value)
    sources = Sources()
    with Store(tmp_path / "store.sqlite3") as store:
        place = Place(
            tmp_path, tmp_path, "unix:///own.sock", Until.TRAINER, store, Supervisor(tmp_path, lambda *_: None)
        )
        flags = own_flags(sources.load().config, place, "a")
    config = Sources(flags=flags).load().config
    assert config.redis.url.get_secret_value() == "unix:///own.sock"
    assert config.policy.name == "replay-a"
    assert config.publishing.transport == "none"
    assert not config.gate.enabled
    assert config.prm.grpc_target == f"127.0.0.1:{flags['prm.grpc_port']}"
    assert (config.metrics.port, config.metrics.wandb_project) == (0, "")
    for path in (config.publishing.weights_dir, config.training.checkpoint_dir, config.metrics.tensorboard_dir):
        assert path is not None
        assert path.is_relative_to(tmp_path / "a")
