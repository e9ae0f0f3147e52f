"""Training runs of the cases in a file, each on a layout of its own; started by torchrun, or called in this process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import megatron  # noqa: F401  # before anything of megatron-core
from hintloop_trainer.checkpoints import CheckpointStore, Resumable, TrainerState
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel, weights
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.objective import objective_from
from hintloop_trainer.ranks import Ranks
from safetensors.torch import save_file

#: Samples of each optimizer step, by collection: two steps on old log-probabilities, then one on none.
COLLECTIONS = ([slice(0, 4), slice(4, 8)], [slice(2, 6)])


LEARNING_RATE = 1e-4


class Case(msgspec.Struct):
    """One run. ``training`` are keys of `[training]`; results lie in a folder of the case's ``name``."""

    name: str
    training: dict[str, Any] = {}
    student: str = "student"
    dtype: str = "float32"
    load: str = ""
    """Case whose checkpoint this run goes on from; that was made after its first collection."""
    save: bool = False
    forced: bool = False
    """Ask for the student's candidates and the teacher's scores first, and which samples spoil a step."""


class Result(msgspec.Struct):
    """What a case did, over its collections."""

    losses: list[float] = []
    grad_norms: list[float] = []
    tokens: list[int] = []
    shared: list[int] = []
    """Positions that were computed with another sample's."""
    entropy: list[float] = []
    ratio: list[float] = []
    scores: list[float] = []
    chosen: dict[str, list[list[int]]] = {}
    taught: list[list[float]] = []
    taught_ids: list[list[list[int]]] = []
    taught_tails: list[list[float]] = []
    blamed: list[int] | None = None


class Watched(Resumable):
    """The learner, with the gradient of its last step told as well."""

    def gradients(self, file: Path) -> None:
        """Write the whole gradient by Hugging Face's names. Collective; not under a distributed optimizer."""
        learner = self.learner
        found: dict[str, torch.Tensor] = {}
        for parameter in learner.model.parameters():
            parameter.data, parameter.kept = parameter.main_grad, parameter.data
        weights.export_tensors(learner.model, learner.arch, learner.layout, found.__setitem__)
        for parameter in learner.model.parameters():
            parameter.data = parameter.kept
        if learner.layout.tp_rank == 0 and learner.layout.dp_rank == 0:
            save_file({name: tensor.clone() for name, tensor in found.items()}, f"{file}-{learner.layout.pp_rank}")


def config_of(folder: Path, case: Case) -> Config:
    return Config.model_validate(
        {
            "model": {"student_model_path": str(folder / case.student), "dtype": case.dtype},
            "rollout": {"rollout_batch_size": 8},
            "training": {
                "train_batch_size": 4,
                "micro_batch_size": 2,
                "learning_rate": LEARNING_RATE,
                # What is added to the loss has to be the same everywhere, too.
                "kl_coef": 0.1,
                "force_kl": True,
                "entropy_coef": 0.05,
                **case.training,
            },
            "prm": {"teacher_source": "trainer"},
        }
    )


def run(folder: Path, case: Case, layout: Layout | None = None) -> None:
    """Run a case on the processes there are; the leading one writes what happened to ``folder / case.name``."""
    config = config_of(folder, case)
    if layout is None:
        keys = config.training
        layout = parallel.arrange(
            keys.tensor_model_parallel_size,
            keys.pipeline_model_parallel_size,
            seed=1,
            timeout_s=120,
            context=keys.context_parallel_size,
            expert=keys.expert_model_parallel_size,
            sequence_parallel=keys.sequence_parallel,
        )
    learner = Learner(config, objective_from(config, load_loss(config.custom_loss, [])), layout)
    ranks = Ranks(Watched(learner, CheckpointStore(folder / case.name / "checkpoints", learner, 3)), layout)
    if layout.rank == 0:
        (folder / case.name).mkdir()
        lead(ranks, folder, case)
        ranks.stop()
    else:
        ranks.follow()


def replace(encoded: bytes, hint: bytes) -> bytes:
    """A sample with a hint, given as bytes, before its prompt."""
    sample = msgspec.msgpack.decode(encoded, type=Sample)
    hinted = pack([*hint, *unpack(sample.prompt_ids).tolist()], "int32")
    return msgspec.msgpack.encode(msgspec.structs.replace(sample, hinted_prompt_ids=hinted))


def lead(ranks: Ranks, folder: Path, case: Case) -> None:
    decoded = msgspec.msgpack.decode((folder / "samples.msgpack").read_bytes(), type=list[Sample])
    samples = [msgspec.msgpack.encode(sample) for sample in decoded]
    result, out = Result(), folder / case.name
    if case.load:
        (checkpoint,) = (folder / case.load / "checkpoints").glob("step-*")
        ranks.call("load", checkpoint)
    ranks.idle()
    if case.forced:
        ask(ranks, samples, result)
    for number, collection in list(enumerate(COLLECTIONS))[1 if case.load else 0 :]:
        ranks.call("begin", [samples[part] for part in collection])
        for index in range(len(collection)):
            step = ranks.call("step", index)
            result.losses.append(step.loss)
            result.grad_norms.append(step.grad_norm)
            result.tokens.append(step.num_tokens)
            result.shared.append(step.work.num_shared)
            result.entropy.append(step.tally.of("entropy").mean)
            result.ratio.append(step.tally.of("ratio_mean").mean)
            if not case.training.get("use_distributed_optimizer") and case.dtype == "float32":
                ranks.call("gradients", out / f"gradient-{number}-{index}")
        if case.save and number == 0:
            save(ranks, case)
        ranks.call("export", out / f"weights-{number}")
    result.scores = ranks.call("score", [3, 1, 4, 1, 5, 9])
    (out / "result.json").write_bytes(msgspec.json.encode(result))


def ask(ranks: Ranks, samples: list[bytes], result: Result) -> None:
    """The student's candidates and the teacher's scores, of samples that ranks cannot share evenly."""
    chosen = ranks.call("choose", samples[:5], 6, 1 << 31)
    taught = ranks.call("teach", [replace(item, b"hint") for item in samples[:5]], 6)
    # One sample at a time, so that most ranks have none.
    result.blamed = ranks.call("blame", samples[:3])
    result.chosen = {turn: ids.tolist() for turn, ids in sorted(chosen.items())}
    for turn in sorted(taught):
        result.taught.append(taught[turn].logprobs.tolist())
        result.taught_ids.append(taught[turn].topk_ids.tolist())
        result.taught_tails.append(taught[turn].tail_logprobs.tolist())


def save(ranks: Ranks, case: Case) -> None:
    state = TrainerState(
        step=2, run="run", lineage=Lineage(), trained_turn_ids=[], num_trained=8, model_path="student", dtype=case.dtype
    )
    ranks.call("begin_save", state, None)
    while ranks.call("finish_save") is None:
        time.sleep(0.05)


def main(folder: Path, cases: Path) -> None:
    torch.set_num_threads(1)
    parallel.start(1, 1, seed=1, timeout_s=120)
    for case in msgspec.json.decode(cases.read_bytes(), type=list[Case]):
        run(folder, case)
    parallel.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
