"""The trainer's side of the null-hint control, and the watch that runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import DropReason
from hintloop_trainer import null_hint, prm_watch
from hintloop_trainer.null_hint import NullHint, Reference
from hintloop_trainer.prm_client import PrmClient, Unscorable
from hintloop_trainer.prm_watch import PrmWatch

from .fake_prm import FakePrm

IDS = [5, 3, 9, 7]
SCORES = [-1.0, -2.0, -3.0]


def config(tmp_path: Path, **sections: Any) -> Config:
    base: dict[str, Any] = {
        "model": {"student_model_path": "m", "dtype": "float32"},
        "training": {"checkpoint_dir": str(tmp_path / "run" / "checkpoints")},
    }
    return Config.model_validate({**base, **sections})


def test_the_first_weights_reference_outlives_a_restart(tmp_path: Path) -> None:
    ours = config(tmp_path)
    first = null_hint.reference(ours, 0, IDS, SCORES)
    assert first == Reference("m", "float32", IDS, SCORES)
    # Later scores are those of trained weights: they are no reference.
    assert null_hint.reference(ours, 7, IDS, [-9.0] * 3) == first
    assert null_hint.reference(ours, 7, [5, 3, 9, 8], SCORES) is None
    other = config(tmp_path, model={"student_model_path": "other", "dtype": "float32"})
    assert null_hint.reference(other, 7, IDS, SCORES) is None
    assert null_hint.reference(config(tmp_path / "elsewhere"), 7, IDS, SCORES) is None


@pytest.mark.parametrize(
    ("trainer", "engine", "limits"),
    [
        ("float32", None, (1e-3, 1e-2)),
        ("float32", "bfloat16", (0.05, 0.75)),
        ("bfloat16", "float32", (0.05, 0.75)),
        ("float32", "float16", (1e-2, 0.1)),
    ],
)
def test_the_tolerance_is_that_of_the_coarser_dtype(
    tmp_path: Path, trainer: str, engine: str | None, limits: tuple[float, float]
) -> None:
    sections = {"model": {"dtype": trainer}, "prm": {"engine_dtype": engine}}
    assert null_hint.tolerances(config(tmp_path, **sections)) == limits


async def compared(shift: float, *, at: int | None = None) -> NullHint | Unscorable:
    def score(prompt: list[int], response: list[int], candidates: Any) -> tuple[Any, Any]:
        assert (prompt, response, candidates) == (IDS[:1], IDS[1:], None)
        said = np.array(SCORES)
        said[slice(None) if at is None else at] += shift
        return said, None

    service = FakePrm(score=score)
    await service.start()
    client = PrmClient(Config.model_validate({"prm": {"grpc_address": f"127.0.0.1:{service.port}"}}).prm, "float16")
    try:
        return await null_hint.compare(client, Reference("m", "float32", IDS, SCORES), (1e-3, 1e-2))
    finally:
        await client.close()
        await service.stop()


async def test_equal_scores_pass_and_others_do_not() -> None:
    same = await compared(0.0)
    assert isinstance(same, NullHint)
    assert (same.passed, same.num_tokens, same.mean, same.largest, same.teacher_model) == (True, 3, 0.0, 0.0, "teacher")
    everywhere, somewhere = await compared(-0.005), await compared(-0.02, at=1)
    assert isinstance(everywhere, NullHint) and isinstance(somewhere, NullHint)
    assert (everywhere.passed, somewhere.passed) == (False, False)
    assert everywhere.mean == pytest.approx(0.005, rel=1e-3)
    assert somewhere.largest == pytest.approx(0.02, rel=1e-3)
    null_hint.require(same)
    with pytest.raises(ConfigError, match=r'null_hint_control = "refuse".*0\.005 nats in the mean'):
        null_hint.require(everywhere)
    with pytest.raises(ConfigError, match="could not be run: why"):
        null_hint.require(Unscorable(DropReason.TEACHER_MISSING, "why"))


async def test_the_watch_says_when_the_prm_goes_and_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prm_watch, "INTERVAL_S", 0.02)
    monkeypatch.setattr(prm_watch, "RETRY_S", 0.02)
    service = FakePrm(score=lambda *_: (np.array(SCORES) - 0.5, None))
    await service.start()
    await service.stop()
    section = Config.model_validate({"prm": {"grpc_address": f"127.0.0.1:{service.port}"}}).prm
    client = PrmClient(section, "float16")
    watch, stop = PrmWatch(client), asyncio.Event()
    assert watch.fields() == {"prm": ""}
    running = asyncio.create_task(watch.serve(Reference("m", "float32", IDS, SCORES), (1e-3, 1e-2), stop))
    await eventually(lambda: watch.available is False)
    assert watch.fields()["prm"].startswith("away: ")
    await service.start()
    await eventually(lambda: watch.available is True)
    await eventually(lambda: watch.control is not None)
    assert watch.fields()["prm"] == "up"
    assert "differs from the student's first weights by 0.5 nats" in watch.fields()["null_hint"]
    await service.stop()
    await eventually(lambda: watch.available is False)
    stop.set()
    await running
    await client.close()


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)
