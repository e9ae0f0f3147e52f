"""Which engines the teacher waits for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher import wiring
from hintloop_teacher.wiring import build_deps, run_worker

from .test_app import save_model


@pytest.mark.parametrize(("estimator", "waits"), [("grpo", False), ("on_policy_distillation", True)])
async def test_engines_are_waited_for_only_where_a_teacher_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, waits: bool
) -> None:
    asked: list[Any] = []

    class Worker:
        def __init__(self, broker: Any, options: Any, handler: Any, ready: Any) -> None:
            self.ready = ready

        async def run(self, stop: asyncio.Event) -> None:
            asked.append(await self.ready())

    monkeypatch.setattr(wiring, "StreamWorker", Worker)
    broker = MemoryBroker()
    settings = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "advantage": {"estimator": estimator},
        "prm": {"prm_url": "http://127.0.0.1:9"},
        "policy": {"engines": ["http://127.0.0.1:9"]},
    }
    deps = await build_deps(Config.model_validate(settings), broker)

    async def prepared() -> None: ...

    monkeypatch.setattr(deps.engine, "prepare", prepared)
    await run_worker(deps, asyncio.Event())
    assert asked == [not waits]
    await broker.close()
