"""How much a step computed, against torch's own counter and plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import model
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.metrics import flops
from hintloop_trainer.objective import objective_from
from hintloop_trainer.report import shown, step_metrics
from hintloop_trainer.tally import Moments
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from .conftest import make_sample
from .test_learner import encoded, make_learner

SAMPLES = [make_sample(turn, num_prompt=3 + turn, num_response=2 + 3 * turn) for turn in range(4)]


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen3", True)])
def test_operations_are_those_that_torch_counts(student: Callable[..., Path], family: str, tied: bool) -> None:
    directory = student(family, tied=tied)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    length = 24
    counter = FlopCounterMode(display=False)
    with counter:
        loss = reference(torch.arange(length)[None]).logits.sum()
    forward = counter.get_total_flops()
    with counter:
        loss.backward()
    backward = counter.get_total_flops()
    arch = model.read_architecture(directory)
    ours = flops.forward_flops(arch, length, length)
    # Eager attention computes what causality hides, too. Rotary frequencies are a product of a few operations.
    hidden = arch.num_layers * 2 * length**2 * arch.num_heads * arch.head_dim
    assert forward == pytest.approx(ours + hidden, rel=0.002)
    assert backward == pytest.approx(2 * forward, rel=0.002)
    assert flops.step_flops(arch, [length], length) == 3 * ours
    assert flops.step_flops(arch, [length], length, frozen=True) == 2 * ours


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA RTX A1000", None),
        ("Some other device", None),
    ],
)
def test_peaks_are_found_by_whole_words(name: str, peak: float | None) -> None:
    assert flops.peak_tflops(name, "bfloat16") == peak
    assert flops.peak_tflops(name, "float32") is None


def with_peak(directory: Path, layout: Layout, peak: float | None, **training: Any) -> Learner:
    config = make_learner(directory, layout, **training).config
    config = config.model_copy(update={"metrics": config.metrics.model_copy(update={"peak_tflops": peak})})
    return Learner(config, objective_from(config, load_loss(None, [directory])), layout)


def test_a_step_says_what_it_computed(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    learner = with_peak(directory, layout, 0.5, packing=False, micro_batch_size=4)
    learner.begin([encoded(SAMPLES)])
    result = learner.step(0)
    lengths = [(3 + turn) + (2 + 3 * turn) for turn in range(4)]
    work = result.work
    assert work.num_read == sum(lengths)
    # Four rows as long as the longest sample's positions.
    assert work.num_positions == 4 * (max(lengths) - 1)
    assert work.padding_share == pytest.approx(1 - sum(length - 1 for length in lengths) / work.num_positions)
    seconds = result.seconds["forward_backward"] + result.seconds["optimizer"]
    assert work.mfu == pytest.approx(work.flops / seconds / 0.5e12)
    assert work.memory["memory_rss_peak"] >= work.memory["memory_rss"] > 2**20


def test_figures_of_a_step_are_complete(student: Callable[..., Path], layout: Layout) -> None:
    learner = with_peak(student(), layout, None)
    learner.begin([encoded(SAMPLES)])
    result = learner.step(0)
    result.tally.add("loss", torch.tensor([99.0]))
    metrics = step_metrics(result, [None] * 4, [0, 1, 2, 3], Moments())  # type: ignore[list-item]
    differences = torch.cat([torch.from_numpy(part) for part in result.tally.values["teacher_minus_student"]])
    assert metrics["teacher_minus_student_p50"] == pytest.approx(differences.quantile(0.5).item(), abs=1e-6)
    assert metrics["teacher_minus_student_max"] == pytest.approx(differences.abs().max().item())
    clipped = differences.clamp(-5, 5)
    assert metrics["advantage_mean"] == pytest.approx(clipped.mean().item(), abs=1e-6)
    assert metrics["advantage_std"] == pytest.approx(clipped.std(correction=0).item(), abs=1e-6)
    assert metrics["advantage_p95"] == pytest.approx(clipped.quantile(0.95).item(), abs=1e-5)
    assert metrics["advantage_share_above_10"] == 0.0
    assert metrics["staleness_mean"] == 1.5
    assert metrics["effective_learning_rate"] == 1e-6
    # A custom loss's own figure does not stand in for ours of the same name.
    assert (metrics["loss"], metrics["custom_loss"]) == (result.loss, 99.0)
    assert "mfu" not in metrics
    line = shown({"step": 3, **metrics})
    assert line["step"] == 3
    assert line["loss"] == pytest.approx(result.loss, rel=1e-4)
    assert len(line) < 25
    assert {"ratio_mean", "ratio_max", "entropy", "grad_norm", "padding_share", "memory_rss", "tokens_per_second"} <= (
        metrics.keys()
    )


def test_parts_of_a_combined_advantage_add_up(student: Callable[..., Path], layout: Layout) -> None:
    learner = with_peak(student(), layout, None, estimator="combine")
    learner.begin([encoded([*SAMPLES[:3], make_sample(9, teacher_logprobs=None, hint=None, score=1)])])
    metrics = step_metrics(learner.step(0), [None] * 4, [0] * 4, Moments())  # type: ignore[list-item]
    parts = metrics["advantage_rl_mean"], metrics["advantage_opd_mean"]
    assert all(parts)
    assert metrics["advantage_mean"] == pytest.approx(sum(parts))  # type: ignore[arg-type]


def test_clipping_is_told_by_its_side(student: Callable[..., Path], layout: Layout) -> None:
    learner = with_peak(student(), layout, None, learning_rate=0.05, ppo_clip_epsilon=0.01, estimator="grpo")
    ups, downs = (make_sample(turn, num_response=6, score=score) for turn, score in ((1, 1), (2, -1)))
    learner.begin([encoded([ups, downs])] * 2)
    learner.step(0)
    metrics = step_metrics(learner.step(1), [None] * 2, [0] * 2, Moments())  # type: ignore[list-item]
    low, high = metrics["clip_fraction_low"], metrics["clip_fraction_high"]
    assert low and high
    assert metrics["clip_fraction"] == pytest.approx(low + high)  # type: ignore[operator]
    assert metrics["ratio_max"] > 1.01  # type: ignore[operator]
