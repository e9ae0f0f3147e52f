"""An adapter that the trainer trained, in both real engines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hintloop_contract.config.schema import Config
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.objective import objective_from
from hintloop_trainer.publish.probe import probe_ids
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.verification import distance

from tests.integration.conftest import RunningEngine

from .conftest import LORA_RANK, students
from .test_transports import CLOSE, site

pytestmark = pytest.mark.engine


async def test_an_adapter_that_was_trained_is_served(tiny: RunningEngine, layout: Layout, tmp_path: Path) -> None:
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(tiny.model_dir), "dtype": "float32"},
            "rollout": {"rollout_batch_size": 2},
            "training": {"train_batch_size": 2, "learning_rate": 1e-2},
            "lora": {"enabled": True, "rank": LORA_RANK, "alpha": 8},
        }
    )
    learner = Learner(config, objective_from(config, load_loss(None, [])), layout)
    ids = probe_ids(Path(config.tokenizer_dir), learner.arch.vocab_size)
    before = learner.score(ids)
    for _ in range(2):
        learner.begin([[msgspec.msgpack.encode(students.make_sample(turn, num_response=16)) for turn in range(2)]])
        learner.step(0)
    learner.export(tmp_path / "21")
    trained = Release(21, tmp_path / "21", ids, learner.score(ids))
    assert distance(before, trained.probe_scores) > 0.05
    async with site(tiny, layout, tmp_path) as made:
        await made.publisher.publish(trained)
        await made.proves(trained)
        # Beside it the student serves on, unchanged.
        base = await made.control.score(ids)
        assert distance(base, before) < CLOSE
        assert trained.adapter is not None
        await made.control.unload_adapter(trained.adapter)
