"""Training runs with adapters, one after another on every layout that the processes allow; started by torchrun.

Each takes two steps, exports and saves; the last one goes on from another layout's checkpoint. Rank 0 prints what
happened as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_trainer.checkpoints import CheckpointStore, TrainerState
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel
from hintloop_trainer.objective import objective_from
from megatron.core import parallel_state

PROBE = [3, 1, 4, 1, 5, 9]


#: Sizes and keys by the name of the layout, by the number of processes; the last one's checkpoint is gone on from.
LAYOUTS: dict[int, dict[str, tuple[int, int, dict[str, bool]]]] = {
    2: {
        "data": (1, 1, {}),
        "optimizer": (1, 1, {"use_distributed_optimizer": True}),
        "tensor": (2, 1, {}),
        "sequence": (2, 1, {"sequence_parallel": True}),
        "pipeline": (1, 2, {}),
    },
    4: {"both": (2, 2, {})},
}


def settings(folder: Path, tensor: int, pipeline: int, keys: dict[str, bool]) -> Config:
    return Config.model_validate(
        {
            "model": {"student_model_path": str(folder / "student"), "dtype": "float32"},
            "rollout": {"rollout_batch_size": 8},
            "training": {
                "train_batch_size": 4,
                "micro_batch_size": 2,
                "learning_rate": 1e-3,
                "grad_clip": 0.5,
                "tensor_model_parallel_size": tensor,
                "pipeline_model_parallel_size": pipeline,
                **keys,
            },
            "lora": {"enabled": True, "rank": 4, "alpha": 16},
        }
    )


def steps(learner: Learner, samples: list[bytes]) -> dict[str, Any]:
    """Two steps, the second of which has B other than zero."""
    losses, norms = [], []
    for part in (samples[:4], samples[4:]):
        learner.begin([part])
        result = learner.step(0)
        losses.append(result.loss)
        norms.append(result.grad_norm)
    return {"losses": losses, "grad_norms": norms, "scores": learner.score(PROBE)}


def save(store: CheckpointStore) -> Path:
    state = TrainerState(
        step=2, run="run", lineage=Lineage(), trained_turn_ids=[], num_trained=8, model_path="s", dtype="float32"
    )
    store.begin(state, None)
    while (path := store.finish()) is None:
        time.sleep(0.01)
    return path


def run(
    folder: Path, samples: list[bytes], name: str, config: Config, load: Path | None
) -> tuple[dict[str, Any], Path]:
    layout = parallel.layout(sequence_parallel=config.training.sequence_parallel)
    learner = Learner(config, objective_from(config, load_loss(None, [])), layout)
    store = CheckpointStore(folder / f"checkpoints-{name}", learner, 1)
    if load is not None:
        store.load(load)
    found = steps(learner, samples)
    learner.export_whole(folder / f"merged-{name}")
    learner.export(folder / f"adapter-{name}")
    found.update(merged=str(folder / f"merged-{name}"), adapter=str(folder / f"adapter-{name}"))
    return found, save(store)


def read_samples(job: Path) -> list[bytes]:
    return [msgspec.msgpack.encode(sample) for sample in msgspec.msgpack.decode(job.read_bytes(), type=list[Sample])]


def main(job: Path) -> None:
    samples = read_samples(job)
    world = parallel.start(1, 1, seed=1, timeout_s=120).world_size
    layouts = {**LAYOUTS[world], "on": next(iter(LAYOUTS[world].values()))}
    results, saved = {}, None
    for name, (tensor, pipeline, keys) in layouts.items():
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(tensor, pipeline)
        config = settings(job.parent, tensor, pipeline, keys)
        results[name], saved = run(job.parent, samples, name, config, saved if name == "on" else None)
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(results))
    parallel.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
