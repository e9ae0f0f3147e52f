"""Makes two steps of the longest samples in a process of its own; prints its peak memory and the estimate, in bytes.

Arguments: the student's directory, samples of a micro-batch, their length, and keys of `[training]` as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import msgspec
import numpy as np
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack
from hintloop_trainer import megatron  # noqa: F401  # before anything of megatron-core
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel
from hintloop_trainer.memory.check import report
from hintloop_trainer.memory.estimate import CHECKPOINT, LAST_RELEASE
from hintloop_trainer.objective import objective_from


def sample(turn: int, length: int, vocab_size: int) -> Sample:
    """Random tokens, nearly all of them trained."""
    rng = np.random.default_rng(turn)
    prompt, response = 10, length - 10
    return Sample(
        turn_id=f"turn-{turn}",
        session_id="session",
        prompt_ids=pack(rng.integers(0, vocab_size, prompt), "int32"),
        response_ids=pack(rng.integers(0, vocab_size, response), "int32"),
        behaviour_logprobs=pack(-rng.uniform(0.1, 6.0, response), "float32"),
        behaviour_space="processed",
        sampling=Sampling(temperature=0.7),
        version_oldest=1,
        version_newest=1,
        captured_ms=0,
        score=1,
        hint="One short sentence please.",
        teacher_logprobs=pack(-rng.uniform(0.1, 6.0, response), "float32"),
    )


def main() -> None:
    """Measure and print."""
    directory, num, length, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    config = Config.model_validate(
        {
            "model": {"student_model_path": directory, "dtype": "float32", "max_seq_len": length},
            "rollout": {"rollout_batch_size": 2 * num},
            "training": {"train_batch_size": 2 * num, "micro_batch_size": num, **keys},
        }
    )
    layout = parallel.start_for(config.training, 1)
    (stage,) = report(config).estimate.stages
    learner = Learner(config, objective_from(config, load_loss(None, [Path(directory)])), layout)
    for step in range(2):
        samples = [sample(10 * step + turn, length, learner.arch.vocab_size) for turn in range(2 * num)]
        learner.begin([[msgspec.msgpack.encode(item) for item in samples]])
        learner.step(0)
    held = sum(size for name, size in stage.held.items() if name not in (LAST_RELEASE, CHECKPOINT))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"measured": peak, "estimated": held + stage.phases["a step"]}))
    parallel.stop()


if __name__ == "__main__":
    main()
