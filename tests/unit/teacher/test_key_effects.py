"""What keys of the configuration change in the teacher, where no other test shows it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError, DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_contract.worker import WorkerOptions
from hintloop_teacher import wiring
from hintloop_teacher.__main__ import main
from hintloop_teacher.errors import ProbeError
from hintloop_teacher.wiring import build_deps
from tokenizers import Tokenizer

from tests.scripted.scoring_engine import WireEngine, served
from tests.scripted.student import save_student

from .test_app import save_model
from .test_wiring import deps_of


async def test_the_tokenizer_may_lie_in_a_directory_of_its_own(tmp_path: Path) -> None:
    save_student(tmp_path / "tokenizer")
    student = tmp_path / "student"
    student.mkdir()
    (student / "config.json").write_bytes((tmp_path / "tokenizer" / "config.json").read_bytes())
    model = {"student_model_path": str(student), "tokenizer_path": str(tmp_path / "tokenizer")}
    deps = await build_deps(Config.model_validate({"model": model}), MemoryBroker())
    assert deps.engine.vocabulary.encode("No.") == [78, 111, 46]
    with pytest.raises(ConfigError, match="holds no tokenizer.json"):
        await build_deps(Config.model_validate({"model": model | {"tokenizer_path": ""}}), MemoryBroker())


async def test_the_configured_dialect_is_spoken(tmp_path: Path) -> None:
    async with served(WireEngine("vllm")) as engine:
        deps = await deps_of(tmp_path, prm_url=engine.url, engine="vllm")
        assert (await deps.engine.prepare()).dialect == "vllm"
        await deps.engine.close()
        wrong = await deps_of(tmp_path, prm_url=engine.url, engine="sglang")
        with pytest.raises(DependencyError, match="/generate answered 404"):
            await wrong.engine.prepare()
        await wrong.engine.close()


async def test_a_teachers_tokenizer_that_is_given_must_be_the_students(tmp_path: Path) -> None:
    other = save_student(tmp_path / "other")
    tokenizer = json.loads((Path(other) / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    Tokenizer.from_str(json.dumps(tokenizer)).save(str(Path(other) / "tokenizer.json"))
    async with served(WireEngine("vllm")) as engine:
        alike = await deps_of(tmp_path, prm_url=engine.url, teacher_tokenizer_path=save_student(tmp_path / "alike"))
        assert (await alike.engine.prepare()).dialect == "vllm"
        await alike.engine.close()
        deps = await deps_of(tmp_path, prm_url=engine.url, teacher_tokenizer_path=other)
        with pytest.raises(ProbeError, match=r"prm\.teacher_tokenizer_path .* differs from the student's"):
            await deps.engine.prepare()
        await deps.engine.close()


@pytest.mark.parametrize(("timeout_s", "num_tries"), [(0.4, 2), (60, 1)])
async def test_a_try_ends_after_its_time(tmp_path: Path, timeout_s: float, num_tries: int) -> None:
    async with served(WireEngine("vllm", flaws={"hangs"})) as engine:
        deps = await deps_of(tmp_path, prm_url=engine.url, engine="vllm", timeout_s=timeout_s, deadline_s=3.0)
        with pytest.raises(DependencyError):
            await deps.engine.prepare()
        assert min(len(engine.paths), 2) == num_tries
        await deps.engine.close()


async def test_the_worker_claims_and_gives_up_as_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the worker does with both is in its own tests (`unit/contract/test_worker.py`)."""
    given: list[WorkerOptions] = []

    class Worker:
        def __init__(self, broker: object, options: WorkerOptions, handler: object, ready: object) -> None:
            given.append(options)

        async def run(self, stop: asyncio.Event) -> None: ...

    monkeypatch.setattr(wiring, "StreamWorker", Worker)
    sections = {
        "model": {"student_model_path": save_student(tmp_path / "s")},
        "advantage": {"estimator": "grpo"},
        "redis": {"claim_idle_ms": 1234, "max_attempts": 7},
    }
    deps = await build_deps(Config.model_validate(sections), MemoryBroker())
    await wiring.run_worker(deps, asyncio.Event())
    assert [(options.claim_idle_ms, options.max_attempts) for options in given] == [(1234, 7)]


def test_the_routes_are_listened_for_at_the_configured_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken:
        values = {
            "model.student_model_path": save_model(tmp_path / "m"),
            "redis.url": "redis://127.0.0.1:9/0",
            "prm.host": "127.0.0.2",
            "prm.port": str(taken.getsockname()[1]),
        }
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        monkeypatch.setattr("hintloop_teacher.__main__.configure_logging", lambda *args: None)
        monkeypatch.setattr(sys, "argv", ["teacher", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert f"prm.port {values['prm.port']} cannot be listened on" in capsys.readouterr().err
