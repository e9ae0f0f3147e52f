"""Data, tensor, pipeline, sequence and expert parallel runs against the run of one process, and each one's checkpoints.

Cases are :mod:`layouts`'; those of as many processes share one start of these.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.errors import ConfigError
from hintloop_trainer.megatron.parallel import Layout, free_port
from safetensors import safe_open

from .conftest import students
from .layouts import LEARNING_RATE, Case, Result, run

SCRIPT = Path(__file__).with_name("layouts.py")
TP: dict[str, Any] = {"tensor_model_parallel_size": 2}
PP: dict[str, Any] = {"pipeline_model_parallel_size": 2}
SP: dict[str, Any] = {"sequence_parallel": True}
EP: dict[str, Any] = {"expert_model_parallel_size": 2}
DISTRIBUTED: dict[str, Any] = {"use_distributed_optimizer": True}
BUDGET: dict[str, Any] = {"micro_batch_tokens": 20}
FULL: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}

#: Samples of which the second goes on from the first.
CONTINUED = ((0, 1), (4, 6), (3, 5))

ALONE = [
    Case("alone", save=True, forced=True),
    Case("mixture", student="student-moe", forced=True),
    Case("alone-distributed", DISTRIBUTED, save=True),
    Case("padded", {"packing": False}),
    Case("apart", {"share_prefixes": False}, forced=True),
    Case("mixture-apart", {"share_prefixes": False}, student="student-moe", forced=True),
    Case("recomputed", FULL),
    Case("recomputed-attention", {"recompute_granularity": "selective"}),
]
TWO = [
    Case("dp", save=True, forced=True),
    Case("tp", TP, forced=True),
    Case("pp", PP, forced=True),
    Case("tp-sequence", TP | SP, forced=True),
    # By tokens, one rank has more micro-batches than the other.
    Case("dp-uneven", BUDGET),
    Case("dp-distributed", {**DISTRIBUTED, "overlap_grad_reduce": True}, save=True),
    Case("pp-distributed", PP | DISTRIBUTED | FULL, save=True),
    Case("mixture-ep", EP, student="student-moe", forced=True, save=True),
    Case("tp-from-alone", TP, load="alone"),
    Case("dp-distributed-from-alone", DISTRIBUTED, load="alone-distributed"),
]
FOUR = [
    Case("tp-pp", TP | PP, forced=True),
    Case("dp-pp-uneven", PP | BUDGET),
    Case("mixture-tp-ep", TP | SP | EP, student="student-moe", forced=True),
    Case("tp-pp-from-dp", TP | PP, load="dp"),
    Case("tp-distributed-from-dp", TP | DISTRIBUTED, load="dp-distributed"),
]
AGAIN = [
    Case("alone-from-dp", load="dp"),
    Case("alone-distributed-from-dp", DISTRIBUTED, load="dp-distributed"),
    Case("alone-distributed-from-pp", DISTRIBUTED, load="pp-distributed"),
    Case("mixture-from-ep", student="student-moe", load="mixture-ep"),
]


def launch(folder: Path, cases: list[Case], world: int, nodes: int) -> None:
    """Run the cases on ``world`` processes, as many for each of ``nodes`` torchruns."""
    file = folder / f"cases-{world}.json"
    file.write_bytes(msgspec.json.encode(cases))
    shared = [f"--nnodes={nodes}", f"--nproc_per_node={world // nodes}", "--master_addr=127.0.0.1"]
    shared.append(f"--master_port={free_port()}")
    command = [sys.executable, "-m", "torch.distributed.run", *shared]
    launchers = [
        subprocess.Popen(
            [*command, f"--node_rank={node}", str(SCRIPT), str(folder), str(file)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(nodes)
    ]
    try:
        outputs = [launcher.communicate(timeout=540)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            # It ends its processes first.
            launcher.terminate()
            launcher.wait(60)
    assert not any(launcher.returncode for launcher in launchers), "\n".join(output[-4000:] for output in outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Students whose vocabulary no two ranks share evenly, and eight samples of different lengths.

    One pair of turns in every step is of one session.
    """
    folder = tmp_path_factory.mktemp("layouts")
    students.tiny_model("qwen3", tied=True).save_pretrained(folder / "student")
    students.tiny_model("qwen3_moe", tied=False).save_pretrained(folder / "student-moe")
    samples = [students.make_sample(turn, num_prompt=3 + turn % 3, num_response=3 + 2 * turn) for turn in range(8)]
    for before, after in CONTINUED:
        samples[after] = students.following(samples[before], samples[after])
    (folder / "samples.msgpack").write_bytes(msgspec.msgpack.encode(samples))
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path, layout: Layout) -> Path:
    for case in ALONE:
        run(folder, case, layout)
    return folder


@pytest.fixture(scope="module")
def two(alone: Path) -> Path:
    """Two nodes of one process each: the first torchrun has the address, the second joins it."""
    launch(alone, TWO, 2, nodes=2)
    return alone


@pytest.fixture(scope="module")
def four(two: Path) -> Path:
    launch(two, FOUR, 4, nodes=1)
    return two


def result_of(folder: Path, name: str) -> Result:
    return msgspec.json.decode((folder / name / "result.json").read_bytes(), type=Result)


def tensors(files: list[Path]) -> dict[str, torch.Tensor]:
    found = {}
    for file in files:
        with safe_open(file, "pt") as handle:
            found.update({name: handle.get_tensor(name) for name in handle.keys()})  # noqa: SIM118
    return found


def gradient(folder: Path, name: str, step: str) -> dict[str, torch.Tensor]:
    return tensors(list((folder / name).glob(f"gradient-{step}-*")))


def check_gradients(folder: Path, one: str, other: str, step: str) -> None:
    """Equal to 1e-5 of each tensor's largest value: the one number that optimizer and rounding do not blur."""
    expected, found = gradient(folder, one, step), gradient(folder, other, step)
    assert expected and expected.keys() == found.keys()
    for name, value in expected.items():
        assert (found[name] - value).abs().max() <= 1e-5 * value.abs().max(), name


def check_results(folder: Path, one: str, other: str, first: int = 0) -> None:
    mine, theirs = result_of(folder, one), result_of(folder, other)
    assert theirs.tokens == mine.tokens[first:]
    # With four samples a step no rank has to compute a beginning again, however they are divided.
    apart = [0] * len(theirs.shared)
    assert theirs.shared == (apart if "apart" in other else mine.shared[first:]) and all(mine.shared)
    for name in ("losses", "grad_norms", "entropy", "ratio"):
        assert getattr(theirs, name) == pytest.approx(getattr(mine, name)[first:], rel=1e-5), name
    assert theirs.scores == pytest.approx(mine.scores, rel=1e-5, abs=1e-5)


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return tensors(list((folder / name / "weights-1").glob("*.safetensors")))


def check_weights(folder: Path, one: str, other: str) -> None:
    """Equal to 1e-5 after three steps that each moved them by ten times as much."""
    expected, found = weights(folder, one), weights(folder, other)
    first = tensors([folder / ("student-moe" if "mixture" in one else "student") / "model.safetensors"])
    assert expected and expected.keys() == found.keys()
    for name, value in expected.items():
        difference = (found[name] - value).abs()
        assert difference.max() <= 1e-5, name
        # AdamW makes as much of a gradient that is rounding alone as of any other; there are few.
        assert difference.mean() <= 1e-7, name
        assert (value - first[name]).abs().max() > 0.9 * LEARNING_RATE, name


def check_forced(folder: Path, one: str, other: str) -> None:
    """The student's candidates and the teacher's scores."""
    mine, theirs = result_of(folder, one), result_of(folder, other)
    assert mine.chosen and theirs.chosen == mine.chosen
    assert theirs.blamed == mine.blamed == []
    assert mine.taught_ids and theirs.taught_ids == mine.taught_ids
    for name in ("taught", "taught_tails"):
        for expected, found in zip(getattr(mine, name), getattr(theirs, name), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def check_run(folder: Path, one: str, case: Case) -> None:
    check_results(folder, one, case.name)
    check_weights(folder, one, case.name)
    if "use_distributed_optimizer" not in case.training:
        check_gradients(folder, one, case.name, "0-0")
    if case.forced:
        check_forced(folder, one, case.name)


def reference(case: Case) -> str:
    return "mixture" if case.student == "student-moe" else "alone"


@pytest.mark.parametrize(
    "case", [case for case in ALONE if case.name not in ("alone", "mixture")], ids=lambda c: c.name
)
def test_what_saves_memory_or_time_makes_the_same_steps(alone: Path, case: Case) -> None:
    check_run(alone, reference(case), case)


@pytest.mark.parametrize("case", [case for case in TWO if not case.load], ids=lambda case: case.name)
def test_two_processes_make_the_same_steps(two: Path, case: Case) -> None:
    check_run(two, reference(case), case)


@pytest.mark.parametrize("case", [case for case in FOUR if not case.load], ids=lambda case: case.name)
def test_four_processes_make_the_same_steps(four: Path, case: Case) -> None:
    check_run(four, reference(case), case)


def check_resumed(folder: Path, case: Case) -> None:
    """The next step is the uninterrupted run's."""
    mine, theirs = result_of(folder, case.load), result_of(folder, case.name)
    assert theirs.losses == pytest.approx(mine.losses[2:], rel=1e-6)
    check_results(folder, case.load, case.name, first=2)
    check_weights(folder, case.load, case.name)


@pytest.mark.parametrize("case", [case for case in TWO if case.load], ids=lambda case: case.name)
def test_two_processes_go_on_from_one_s_checkpoint(two: Path, case: Case) -> None:
    check_resumed(two, case)


@pytest.mark.parametrize("case", [case for case in FOUR if case.load], ids=lambda case: case.name)
def test_four_processes_go_on_from_two_s_checkpoint(four: Path, case: Case) -> None:
    check_resumed(four, case)


@pytest.mark.parametrize("case", AGAIN, ids=lambda case: case.name)
def test_one_process_goes_on_from_two_s_checkpoint(two: Path, layout: Layout, case: Case) -> None:
    run(two, case, layout)
    check_resumed(two, case)


def test_a_checkpoint_of_the_other_kind_of_optimizer_is_refused(alone: Path, layout: Layout) -> None:
    with pytest.raises(
        ConfigError, match="use_distributed_optimizer is true, but the checkpoint .* false; set it back"
    ):
        run(alone, Case("refused", DISTRIBUTED, load="alone"), layout)
