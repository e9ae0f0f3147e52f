"""The estimate of memory against what real models hold, and what follows from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from hintloop_contract.config.schema import Config
from hintloop_trainer import __main__ as launcher
from hintloop_trainer.batch import collate, read_example
from hintloop_trainer.chains import alone
from hintloop_trainer.errors import NoRoomError
from hintloop_trainer.megatron import cpu, lora, model
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.memory import activations, capacity, parameters
from hintloop_trainer.memory.advice import advise
from hintloop_trainer.memory.check import check, report
from hintloop_trainer.memory.estimate import CHECKPOINT, GIB, HOST_BASE_BYTES, LAST_RELEASE, estimate, plan_for
from hintloop_trainer.snapshot import Snapshot

from .conftest import VOCAB, make_sample
from .test_learner import encoded, make_learner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def config(directory: Path, **sections: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {
        "model": {"student_model_path": str(directory), "dtype": "float32", "max_seq_len": 48},
        "training": {"micro_batch_size": 2},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    return Config.model_validate(base)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_weights_are_counted_one_by_one(
    student: Callable[..., Path], layout: Layout, family: str, tied: bool, adapters: bool
) -> None:
    if adapters and family == "qwen3_moe":
        pytest.skip("adapters beside experts are refused")
    settings = config(student(family, tied=tied), lora={"enabled": adapters, "rank": 3})
    plan = plan_for(settings)
    built = model.build(plan.arch, layout, torch.float32, 64)
    if adapters:
        lora.attach(built, plan.arch, layout, settings.lora, 0)
    count = parameters.count(plan, 0)
    assert count.total == sum(parameter.numel() for parameter in built.parameters())
    assert count.largest == max(parameter.numel() for parameter in built.parameters() if parameter.dim() > 1)


def test_stages_and_tensor_ranks_share_the_weights(student: Callable[..., Path]) -> None:
    directory = student("qwen3", tied=False)
    whole = parameters.count(plan_for(config(directory)), 0)
    stages = plan_for(config(directory, training={"pipeline_model_parallel_size": 2}))
    assert sum(parameters.count(stages, stage).total for stage in (0, 1)) == whole.total
    half = plan_for(config(directory, training={"tensor_model_parallel_size": 2}))
    # Norms are whole on both ranks; the vocabulary is rounded up to an even number of rows.
    norms = 2 * 2 * 64 + 2 * 2 * 32 + 64
    padding = 2 * 64 * (half.arch.padded_vocab(2) - VOCAB)
    assert 2 * parameters.count(half, 0).total == whole.total + norms + padding


def test_gradients_and_moments_are_as_large_as_said(student: Callable[..., Path], layout: Layout) -> None:
    directory = student("llama", tied=False)
    for dtype in DTYPES:
        learner = make_learner(directory, layout, dtype=dtype)
        learner.begin([encoded([make_sample(turn) for turn in range(4)])])
        learner.step(0)
        (stage,) = estimate(plan_for(learner.config)).stages
        buffers = sum(buffer.grad_data.nbytes for buffer in learner.replicated.buffers)
        assert buffers == pytest.approx(stage.held["gradients"], rel=0.01)
        inner: Any = getattr(learner.optimizer, "chained_optimizers", [learner.optimizer])[0].optimizer
        moments = sum(state[name].nbytes for state in inner.state.values() for name in ("exp_avg", "exp_avg_sq"))
        assert moments == stage.held["AdamW moments"]
        assert stage.held.get("float32 weights", 0.0) == (moments / 2 if dtype == "bfloat16" else 0.0)
        assert stage.held["weights"] == sum(parameter.nbytes for parameter in learner.model.parameters())
        snapshot = Snapshot(learner)
        snapshot.keep()
        kept = sum(value.nbytes for _, value in snapshot._values.values())
        assert kept == pytest.approx(stage.held[LAST_RELEASE], rel=0.01)


def saved_bytes(plan: Any, layout: Layout) -> int:
    """What autograd keeps of one forward pass of the longest micro-batch, each storage once, weights aside."""
    training, longest = plan.config.training, plan.config.model.max_seq_len
    dtype = DTYPES[plan.config.model.dtype]
    network = model.build(plan.arch, layout, dtype, longest, training)
    for parameter in network.parameters():
        parameter.data.normal_(0.0, 0.02)
    examples = [
        read_example(make_sample(turn, num_prompt=9, num_response=longest - 8), VOCAB)
        for turn in range(training.micro_batch_size)
    ]
    batch = collate(alone(examples), packed=training.packing, candidates=False, device=torch.device("cpu"))
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    from hintloop_trainer.megatron.attention import packed_row

    row = packed_row(batch.lengths, 1, torch.device("cpu")) if batch.packed else None
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cpu.quietly():
        network(batch.input_ids_BS, batch.position_ids_BS, None, packed_seq_params=row)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_what_is_kept_for_the_backward_pass_is_as_much_as_said(
    student: Callable[..., Path], layout: Layout, family: str, dtype: str, packing: bool
) -> None:
    directory = student(family, num_hidden_layers=6)
    plan = plan_for(config(directory, model={"dtype": dtype}, training={"packing": packing}))
    # Besides the layers, a few tensors stand before and behind them.
    assert saved_bytes(plan, layout) == pytest.approx(activations.kept_bytes(plan, 0), rel=0.08)


def test_recomputation_keeps_as_little_as_said(student: Callable[..., Path], layout: Layout) -> None:
    keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    plan = plan_for(config(student("llama", num_hidden_layers=6), training=keys))
    said = activations.kept_bytes(plan, 0) - activations.layer_bytes(plan)
    assert saved_bytes(plan, layout) == pytest.approx(said, rel=0.6)
    plain = plan_for(config(Path(plan.config.model.student_model_path)))
    assert activations.kept_bytes(plan, 0) < 0.4 * activations.kept_bytes(plain, 0)


def held_by(directory: Path, world_size: int = 1, **sections: dict[str, Any]) -> dict[str, float]:
    return estimate(plan_for(config(directory, **sections), world_size=world_size)).stages[0].held


def test_every_key_that_takes_or_saves_memory_shows(student: Callable[..., Path]) -> None:
    directory = student("llama")
    plain = held_by(directory, 4)
    shared = held_by(directory, 4, training={"use_distributed_optimizer": True})
    assert shared["AdamW moments"] == plain["AdamW moments"] / 4
    assert shared["gradients"] == plain["gradients"]
    method = {"estimator": "grpo"}
    assert held_by(directory, advantage=method, training={"kl_coef": 0.1})["reference's copy"] == plain["weights"]
    own = held_by(directory, prm={"teacher_source": "trainer"}, training={"kl_coef": 0.1, "force_kl": True})
    assert own["teacher's copy"] == plain["weights"]
    # First weights are held once.
    assert "reference's copy" not in own
    ema = held_by(directory, prm={"teacher_source": "trainer", "teacher_weights": "ema"})
    assert (ema["teacher's copy"], ema["moving average"]) == (plain["weights"], plain["weights"])
    # What a step changes stands there once more for the gate, and while a checkpoint is written.
    assert plain[LAST_RELEASE] == plain[CHECKPOINT] == 3 * plain["weights"]
    assert ema[CHECKPOINT] == 4 * plain["weights"]
    assert LAST_RELEASE not in held_by(directory, gate={"enabled": False})
    adapters = held_by(directory, lora={"enabled": True}, prm={"teacher_source": "trainer"})
    assert adapters["gradients"] < plain["gradients"] / 2
    assert "teacher's copy" not in adapters


def test_the_gates_process_is_counted_once_and_undivided(student: Callable[..., Path]) -> None:
    directory = student("llama")
    found = report(config(directory), world_size=2)
    weights = found.estimate.stages[0].held["weights"]
    assert found.estimate.gate_process == HOST_BASE_BYTES + 2 * weights
    divided = report(config(directory, training={"tensor_model_parallel_size": 2}))
    assert divided.estimate.gate_process == found.estimate.gate_process
    engine = report(config(directory, gate={"engine_url": "http://gate:8000"}))
    assert engine.estimate.gate_process == HOST_BASE_BYTES + weights
    assert report(config(directory, gate={"enabled": False})).estimate.gate_process == 0.0
    needed = 2 * found.estimate.peak + found.estimate.gate_process
    tight = dataclasses.replace(found, capacity=capacity.Capacity(0.999 * needed, None, 2))
    assert "needed by 2 process(es) and the gate's" in tight.shortages[0]
    assert dataclasses.replace(found, capacity=capacity.Capacity(needed, None, 2)).shortages == []


def test_on_a_gpu_the_gates_process_takes_the_leading_ranks_device(student: Callable[..., Path]) -> None:
    for device, on_device in (("auto", True), ("cpu", False)):
        plan = plan_for(config(student("llama"), gate={"device": device}), device="cuda")
        found = estimate(plan)
        assert found.gate_on_device is on_device
        assert found.leading_peak == found.peak + (found.gate_process if on_device else 0.0)


def test_micro_batches_by_tokens_are_as_large_as_their_budget(student: Callable[..., Path]) -> None:
    directory = student("llama")
    assert plan_for(config(directory)).positions == 96
    assert plan_for(config(directory, training={"micro_batch_tokens": 500})).positions == 500
    # A sample above the budget goes alone.
    assert plan_for(config(directory, training={"micro_batch_tokens": 20})).positions == 48


def test_advice_is_what_the_estimate_says_after_the_change(student: Callable[..., Path]) -> None:
    settings = config(student("llama"), model={"max_seq_len": 4096}, training={"micro_batch_size": 4})
    plan = plan_for(settings, world_size=2)
    found = advise(plan)
    assert [item.saves for item in found] == sorted((item.saves for item in found), reverse=True)
    saves = {item.change: item.saves for item in found}
    smaller = config(
        Path(settings.model.student_model_path), model={"max_seq_len": 4096}, training={"micro_batch_size": 1}
    )
    less = estimate(plan).peak - estimate(plan_for(smaller, world_size=2)).peak
    assert saves["training.micro_batch_size = 1"] == pytest.approx(less)
    assert "model.max_seq_len = 2048" in saves
    assert any(change.startswith('training.recompute_granularity = "full"') for change in saves)


def test_what_does_not_fit_is_said_or_refused(student: Callable[..., Path], tmp_path: Path) -> None:
    directory = student("llama")
    endless = {"max_seq_len": 10**9}
    with structlog.testing.capture_logs() as logs:
        check(config(directory, model=endless), tmp_path, leading=True)
        check(config(directory, model=endless), tmp_path, leading=False)
    assert [entry["log_level"] for entry in logs] == ["info", "warning"]
    assert "most at once" in logs[0]["event"]
    assert "not enough memory" in logs[1]["event"]
    with pytest.raises(
        NoRoomError,
        match=r"GiB free, .* are needed by 1 process\(es\) and the gate's; set .*model.max_seq_len = 500000000",
    ):
        check(config(directory, model=endless, training={"memory_check": "refuse"}), tmp_path, leading=False)
    with structlog.testing.capture_logs() as logs:
        check(config(directory, training={"memory_check": "refuse"}), tmp_path, leading=True)
        check(config(directory, model=endless, training={"memory_check": "off"}), tmp_path, leading=True)
    assert [entry["log_level"] for entry in logs] == ["info"]


def test_all_processes_of_a_host_share_its_memory(student: Callable[..., Path]) -> None:
    found = report(config(student("llama")), world_size=2)
    tight = dataclasses.replace(found, capacity=capacity.Capacity(1.5 * found.estimate.peak, None, 2))
    assert len(tight.shortages) == 1
    assert "needed by 2 process(es)" in tight.shortages[0]
    device = dataclasses.replace(found, capacity=capacity.Capacity(100 * GIB, 0.5 * found.estimate.peak, 2))
    assert "the device has" in device.shortages[0]


def test_a_container_bounds_what_is_free(tmp_path: Path) -> None:
    limit, usage, statistics = tmp_path / "max", tmp_path / "current", tmp_path / "stat"
    limit.write_text("1000\n")
    usage.write_text("700\n")
    statistics.write_text("anon 500\ninactive_file 150\n")
    assert capacity.container_room(limit, usage, statistics) == 450
    limit.write_text("max\n")
    assert capacity.container_room(limit, usage, statistics) is None
    assert capacity.container_room(tmp_path / "absent", usage, statistics) is None


def test_the_estimate_is_printed_without_any_weights(
    student: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = student("qwen3")
    (directory / "model.safetensors").unlink()
    file = tmp_path / "config.toml"
    file.write_text(f"[model]\nstudent_model_path = {json.dumps(str(directory))}\nmax_seq_len = 64\n")
    arguments = ["hintloop_trainer", "--config", str(file)]
    monkeypatch.setattr("sys.argv", [*arguments, "--estimate=4"])
    assert launcher.main() == 0
    shown = capsys.readouterr().out
    assert "4 process(es): TP 1, PP 1, CP 1, EP 1, DP 4" in shown
    assert "most at once" in shown
    monkeypatch.setattr("sys.argv", [*arguments, "--estimate", "--set", "model.max_seq_len=1000000000"])
    assert launcher.main() == 1
    assert "are needed by 1 process(es)" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*arguments, "--estimate=none"])
    with pytest.raises(SystemExit, match="--estimate=8"):
        launcher.main()
