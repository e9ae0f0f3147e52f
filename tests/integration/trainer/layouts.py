"""One training run on the layout of its arguments; rank 0 prints what happened as JSON. Started by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer.checkpoints import CheckpointStore, Resumable, TrainerState
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel
from hintloop_trainer.objective import objective_from
from hintloop_trainer.ranks import Ranks


def main(job: Path, tensor: int, pipeline: int, load: str) -> None:
    samples: list[bytes] = [
        msgspec.msgpack.encode(s) for s in msgspec.msgpack.decode(job.read_bytes(), type=list[Sample])
    ]
    folder = job.parent
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(folder / "student"), "dtype": "float32"},
            "rollout": {"rollout_batch_size": 8},
            "training": {
                "train_batch_size": 4,
                "micro_batch_size": 2,
                "learning_rate": 1e-3,
                "tensor_model_parallel_size": tensor,
                "pipeline_model_parallel_size": pipeline,
                "custom_loss_path": "topk_reverse_kl.py" if load == "topk" else None,
            },
            "prm": {"teacher_source": "trainer"},
        }
    )
    layout = parallel.start(tensor, pipeline, seed=1, timeout_s=120)
    learner = Learner(config, objective_from(config, load_loss(config.custom_loss, [])), layout)
    store = CheckpointStore(folder / "checkpoints", learner, 3)
    ranks = Ranks(Resumable(learner, store), layout)
    if layout.rank == 0:
        lead(ranks, samples, folder / f"out-{layout.world_size}-{tensor}-{pipeline}-{load}", load)
    else:
        ranks.follow()
    parallel.stop()


def replace(encoded: bytes, hint: bytes) -> bytes:
    """A sample with a hint, given as bytes, before its prompt."""
    sample = msgspec.msgpack.decode(encoded, type=Sample)
    hinted = pack([*hint, *unpack(sample.prompt_ids).tolist()], "int32")
    return msgspec.msgpack.encode(msgspec.structs.replace(sample, hinted_prompt_ids=hinted))


def lead(ranks: Ranks, samples: list[bytes], out: Path, load: str) -> None:
    if load.startswith("/"):
        ranks.call("load", Path(load))
    ranks.idle()
    chosen = ranks.call("choose", samples[:5], 6, 1 << 31)
    hinted = [replace(item, b"hint") for item in samples[:5]]
    taught = ranks.call("teach", hinted, 6)
    ranks.call("begin", [samples[:4], samples[4:]])
    results = [ranks.call("step", index) for index in (0, 1)]
    scores = ranks.call("score", [3, 1, 4, 1, 5, 9])
    digest = ranks.call("export", out)
    state = TrainerState(
        step=2, run="run", lineage=Lineage(), trained_turn_ids=[], num_trained=8, model_path="student", dtype="float32"
    )
    if not load.startswith("/") and load != "topk":
        ranks.call("save", state)
    print(
        "RESULT "
        + json.dumps(
            {
                "losses": [result.loss for result in results],
                "grad_norms": [result.grad_norm for result in results],
                "tokens": [result.num_tokens for result in results],
                "read": [result.work.num_read for result in results],
                "entropy": [result.tally.of("entropy").mean for result in results],
                "ratio": [result.tally.of("ratio_mean").mean for result in results],
                "scores": scores,
                "chosen": {turn: ids.tolist() for turn, ids in sorted(chosen.items())},
                "taught": [taught[turn].logprobs.tolist() for turn in sorted(taught)],
                "taught_ids": [taught[turn].topk_ids.tolist() for turn in sorted(taught)],
                "taught_tails": [taught[turn].tail_logprobs.tolist() for turn in sorted(taught)],
                "digest": digest,
                "out": str(out),
            }
        )
    )
    ranks.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
