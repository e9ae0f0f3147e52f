"""What to turn down, by how much memory that saves: the estimate is made anew for each change that is possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hintloop_trainer.memory.estimate import estimate
from hintloop_trainer.memory.plan import DTYPE_BYTES, Plan

#: Savings below this share of the peak are not worth a line.
LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of the configuration."""

    change: str
    """As it is written: ``training.micro_batch_size = 1``."""
    saves: float
    """Bytes of a rank's peak on its device, which on a CPU is the host."""


def advise(plan: Plan) -> list[Advice]:
    """Changes that save memory, the most effective first; each alone, on the configuration as it is."""
    peak = _peak(plan)
    found = []
    for change, changed in _changes(plan):
        saves = peak - _peak(changed)
        if saves >= LEAST_SHARE * peak:
            found.append(Advice(change, saves))
    return sorted(found, key=lambda advice: -advice.saves)


def _peak(plan: Plan) -> float:
    found = estimate(plan)
    return max(found.peak, found.leading_peak)


def _changes(plan: Plan) -> Iterator[tuple[str, Plan]]:
    training, model = plan.config.training, plan.config.model
    if training.micro_batch_tokens is not None and training.micro_batch_tokens > model.max_seq_len:
        yield _with(plan, "training", micro_batch_tokens=max(model.max_seq_len, training.micro_batch_tokens // 2))
    elif training.micro_batch_tokens is None and training.micro_batch_size > 1:
        yield _with(plan, "training", micro_batch_size=1)
    yield _with(plan, "model", max_seq_len=max(1, model.max_seq_len // 2))
    if training.recompute_granularity != "full":
        keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        yield _with(plan, "training", **keys)
    if not training.use_distributed_optimizer and plan.dp * plan.cp > 1:
        yield _with(plan, "training", use_distributed_optimizer=True)
    if not plan.config.lora.enabled:
        yield _with(plan, "lora", enabled=True)
    if plan.dtype_bytes == DTYPE_BYTES["float32"] and plan.device == "cuda":
        change, changed = _with(plan, "model", dtype="bfloat16")
        yield change, dataclasses.replace(changed, dtype_bytes=DTYPE_BYTES["bfloat16"])
    if plan.config.gate.enabled:
        yield _with(plan, "gate", enabled=False)
    if training.kl_coef:
        yield _with(plan, "training", kl_coef=0.0)
    if plan.teaches and plan.config.prm.teacher_weights != "current":
        yield _with(plan, "prm", teacher_weights="current")
    yield from _layouts(plan)


def _layouts(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Twice the ranks for one copy of the model, where the model can be divided so."""
    arch, training = plan.arch, plan.config.training
    if not (arch.num_heads % (2 * plan.tp) or arch.num_kv_groups % (2 * plan.tp) or arch.ffn_size % (2 * plan.tp)):
        yield _more_ranks(plan, "tensor_model_parallel_size", 2 * training.tensor_model_parallel_size)
    if not arch.num_layers % (2 * plan.pp):
        yield _more_ranks(plan, "pipeline_model_parallel_size", 2 * training.pipeline_model_parallel_size)


def _more_ranks(plan: Plan, key: str, value: int) -> tuple[str, Plan]:
    change, changed = _with(plan, "training", **{key: value})
    world_size = max(plan.world_size, changed.model_ranks)
    return f"{change} ({world_size} processes)", dataclasses.replace(changed, world_size=world_size)


def _with(plan: Plan, section: str, **values: Any) -> tuple[str, Plan]:
    """The change in words, and the plan with it."""
    # Without checking: some keys only go together, and what is asked here is the memory alone.
    changed = getattr(plan.config, section).model_copy(update=values)
    config = plan.config.model_copy(update={section: changed})
    words = ", ".join(f"{section}.{key} = {_written(value)}" for key, value in values.items())
    return words, dataclasses.replace(plan, config=config)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
