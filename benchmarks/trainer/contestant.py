"""`python -m benchmarks.trainer.contestant NAME SESSIONS MODEL`: one contestant in a process of its own.

Makes a step for every line on its standard input and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hintloop_contract.config.operations import LoggingSection
from hintloop_contract.config.schema import Config
from hintloop_contract.logs import configure_logging
from hintloop_contract.messages import Sample

from benchmarks.trainer import samples

#: Of the reference configuration.
NUM_SAMPLES = 16
#: Agents at work, each in a session of its own: of sixteen turns, six go on from another of them.
SESSIONS = 10
#: Tokens of a forward pass, padding included. The more, the more the baseline pads (see `padding` in the report).
BUDGET = 2048
LEARNING_RATE = 1e-6
VOCAB_SIZE = 49152
SEED = 1

Step = Callable[[], tuple[float, float]]
"""Makes an optimizer step; gives the loss and the gradient's norm."""


def configuration(model: Path, *, num_samples: int = NUM_SAMPLES, **sections: Any) -> Config:
    """What the trainer is started with."""
    return Config.model_validate(
        {
            "model": {"student_model_path": str(model), "dtype": "float32"},
            "rollout": {"rollout_batch_size": num_samples},
            "training": {
                "train_batch_size": num_samples,
                "micro_batch_tokens": BUDGET,
                "learning_rate": LEARNING_RATE,
            },
            "advantage": {"estimator": "on_policy_distillation"},
            **sections,
        }
    )


def turns(sessions: int, count: int = NUM_SAMPLES, seed: int = SEED) -> list[Sample]:
    """The samples of a step."""
    return samples.make(count, VOCAB_SIZE, seed, sessions=sessions)


def learner(config: Config, sessions: int = SESSIONS) -> tuple[Any, Step]:
    """The trainer's learner, driven as its loop does."""
    import msgspec
    from hintloop_trainer.megatron import cpu

    cpu.install()
    from hintloop_trainer.learner import Learner
    from hintloop_trainer.losses.loading import load_loss
    from hintloop_trainer.megatron import parallel
    from hintloop_trainer.objective import objective_from

    found = Learner(config, objective_from(config, load_loss(None, [])), parallel.start(1, 1, seed=1))
    made = turns(sessions, config.training.train_batch_size)
    encoded = [msgspec.msgpack.encode(sample) for sample in made]

    def step() -> tuple[float, float]:
        found.begin([encoded])
        result = found.step(0)
        return result.loss, result.grad_norm

    return found, step


def _peer(model: Path, sessions: int, *, ordered: bool) -> Step:
    from benchmarks.trainer.peer import Peer

    return Peer(model, turns(sessions), BUDGET, ordered=ordered, learning_rate=LEARNING_RATE).step


CONTESTANTS: dict[str, Callable[[Path, int], Step]] = {
    "hintloop": lambda model, sessions: learner(configuration(model), sessions)[1],
    "transformers-sorted": lambda model, sessions: _peer(model, sessions, ordered=True),
    "transformers-unsorted": lambda model, sessions: _peer(model, sessions, ordered=False),
}


def _usage() -> tuple[float, int]:
    """Processor seconds, and the most memory held so far in bytes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Serve until the standard input ends."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    configure_logging("bench", LoggingSection(level="error"))
    name, sessions, model = sys.argv[1:]
    step = CONTESTANTS[name](Path(model), int(sessions))
    print(json.dumps({"ready": name}), flush=True)
    for _ in sys.stdin:
        used, started = _usage()[0], time.perf_counter()
        loss, norm = step()
        seconds, (processor, peak) = time.perf_counter() - started, _usage()
        measured = {"seconds": seconds, "cpu_seconds": processor - used, "peak_bytes": peak}
        print(json.dumps({**measured, "loss": loss, "grad_norm": norm}), flush=True)


if __name__ == "__main__":
    main()
