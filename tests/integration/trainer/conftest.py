"""Everything a training loop needs, with a tiny student and a broker in memory."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config
from hintloop_contract.history import HistoryBounds
from hintloop_contract.messages import Sample
from hintloop_contract.streams import SAMPLES
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_trainer import wiring
from hintloop_trainer.background import Background
from hintloop_trainer.checkpoints import CheckpointStore, Resumable, complete, read_state
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel
from hintloop_trainer.objective import objective_from
from hintloop_trainer.points import Reached, pass_by
from hintloop_trainer.progress import Progress
from hintloop_trainer.ranks import Ranks

from tests.integration.conftest import ENGINES, RunningEngine, serve

#: The highest rank of adapters that the tiny engines take.
LORA_RANK = 4


def _unit_conftest() -> ModuleType:
    """The tiny students and samples of the unit tests."""
    path = Path(__file__).parents[2] / "unit" / "trainer" / "conftest.py"
    spec = importlib.util.spec_from_file_location("trainer_students", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer_students"] = module
    spec.loader.exec_module(module)
    return module


students = _unit_conftest()


@pytest.fixture(scope="session")
def layout() -> Iterator[parallel.Layout]:
    # The unit tests may have started the one process group that a process can have.
    if dist.is_initialized():
        yield parallel.layout()
        return
    yield parallel.start(1, 1, seed=1)
    parallel.stop()


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    make: Callable[..., Sample] = students.make_sample
    return make


@pytest.fixture
def student(tmp_path: Path) -> Callable[..., Path]:
    """Save a tiny model of no one's architecture but ours; its directory."""

    def save() -> Path:
        directory = tmp_path / "tiny"
        students.tiny_model("qwen3", tied=True).save_pretrained(directory)
        return directory

    return save


@dataclass
class Bench:
    """A trainer in this process; :meth:`train` runs it until its configured number of steps."""

    folder: Path
    layout: parallel.Layout
    background: Background
    broker: Broker

    def config(self, **sections: dict[str, Any]) -> Config:
        """A configuration of two samples a step; sections are merged over it."""
        base: dict[str, dict[str, Any]] = {
            "model": {"student_model_path": str(self.folder / "student"), "dtype": "float32", "max_seq_len": 64},
            "rollout": {"rollout_batch_size": 2},
            "training": {
                "train_batch_size": 2,
                "micro_batch_size": 2,
                "learning_rate": 1e-3,
                "max_steps": 2,
                "checkpoint_dir": self.folder / "checkpoints",
            },
            "publishing": {"weights_dir": self.folder / "weights"},
            # The tiny student knows no words.
            "gate": {"enabled": False},
        }
        for section, values in sections.items():
            base[section] = {**base.get(section, {}), **values}
        return Config.model_validate(base)

    def train(
        self,
        config: Config,
        *,
        engines: Sequence[Any] = (),
        stop: threading.Event | None = None,
        reached: Reached = pass_by,
        gate: Gate | None = None,
    ) -> tuple[Progress, Learner]:
        loss = load_loss(config.custom_loss, [self.folder])
        learner = Learner(config, objective_from(config, loss), self.layout)
        store = CheckpointStore(config.training.checkpoint_dir, learner, config.training.keep_checkpoints, reached)
        ranks = Ranks(Resumable(learner, store), self.layout)
        publisher = wiring.make_publisher(config, self.broker, engines)
        progress = wiring.lead(
            config,
            loss,
            ranks,
            learner.arch.vocab_size,
            stop or threading.Event(),
            self.background,
            self.broker,
            publisher,
            reached,
            gate,
        )
        return progress, learner

    def metrics(self) -> list[dict[str, Any]]:
        """Figures of every step, as they were written."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def trained_ids(self) -> list[str]:
        """Turns that the newest checkpoint holds."""
        newest = complete(self.folder / "checkpoints")[-1]
        return read_state(newest).trained_turn_ids

    def feed(self, samples: Sequence[Sample]) -> None:
        async def append() -> None:
            for sample in samples:
                await self.broker.append(SAMPLES, sample)

        self.background.run(append())


@pytest.fixture
def bench(tmp_path: Path, layout: parallel.Layout) -> Iterator[Bench]:
    students.tiny_model("qwen3", tied=True).save_pretrained(tmp_path / "student")
    with Background() as background:

        async def connect() -> Broker:
            return MemoryBroker(history=HistoryBounds(10_000, 100_000_000))

        broker = background.run(connect())
        background.run(broker.ensure_groups())
        yield Bench(tmp_path, layout, background, broker)
        background.run(broker.close())


@pytest.fixture(scope="package")
def make_tiny(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a tiny Qwen3 with a head of its own, or one tied to the embedding; its directory."""

    def make(*flags: str) -> Path:
        directory = tmp_path_factory.mktemp("tiny") / "model"
        script = ENGINES / "models" / "make_tiny.py"
        command = [sys.executable, str(script), str(directory), "--family", "qwen3", "--tokenizer", str(smollm2_dir)]
        subprocess.run([*command, *flags], check=True)
        return directory

    return make


@pytest.fixture(
    scope="package",
    params=[
        ("vllm",),
        ("sglang",),
        pytest.param(("vllm", "--tied"), marks=pytest.mark.slow),
        pytest.param(("sglang", "--tied"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def tiny(
    request: pytest.FixtureRequest, make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    """Each engine with a tiny model, taking adapters."""
    kind, *flags = request.param
    folder = tmp_path_factory.mktemp("tiny-log")
    yield from serve(kind, make_tiny(*flags), folder, 2048, HINTLOOP_LORA_RANK=str(LORA_RANK))


def run(bench: Bench, work: Any) -> Any:
    """Result of a broker's coroutine."""
    assert asyncio.iscoroutine(work)
    return bench.background.run(work)
