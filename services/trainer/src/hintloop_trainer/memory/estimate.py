"""The estimate: what each rank holds and when, on its device and on its host.

Always held are weights, float32 gradients, AdamW's two float32 moments (and float32 weights beside bfloat16 ones),
and copies of the model that a reference or a teacher of its own needs. On the host stand what training changes as it
was at the last release, for the gate, and again what it changes while a checkpoint is written (at most all of it).
On top comes what a phase needs: a step its activations and one chunk of logits; the optimizer some temporaries; an
export the weights as files on the host. The peak is the largest of the phases. Beside the leading rank stands the
process that answers the gate's probes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config

from hintloop_trainer.megatron import cpu
from hintloop_trainer.megatron.logprobs import CHUNK_BYTES
from hintloop_trainer.megatron.model import Architecture, read_architecture
from hintloop_trainer.memory import activations, parameters
from hintloop_trainer.memory.plan import DTYPE_BYTES, Plan

GIB = 2**30
#: Keys of `[training]` that divide the model.
SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
LAST_RELEASE, CHECKPOINT = "last release, for the gate", "checkpoint being written"
#: Of a CUDA process before any tensor: context, libraries, NCCL's buffers. Others' experience, not measured here.
CUDA_BASE_BYTES = 1.5 * GIB
#: Python, torch, megatron and transformers, imported; measured.
HOST_BASE_BYTES = 0.45 * GIB
#: Float32 arrays as large as a chunk of logits that exist at once: logits, those at the sampling temperature,
#: probabilities, and their gradients; measured.
LOGITS_COPIES = 5.0
#: What a step takes beyond its tensors, because freed memory is not reused to the last byte; measured on a CPU (glibc),
#: a guess for CUDA's caching allocator.
FRAGMENTATION = {"cpu": 1.25, "cuda": 1.1}


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes of one rank of a pipeline stage, by what they are for."""

    stage: int
    held: dict[str, float]
    """On the device, always."""
    phases: dict[str, float]
    """On the device, on top, one after another."""
    host: dict[str, float]
    """On the host, where the device is another memory; empty on a CPU."""

    @property
    def peak(self) -> float:
        """Most bytes on the device."""
        return sum(self.held.values()) + max(self.phases.values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """One :class:`StageMemory` for each pipeline stage."""

    plan: Plan
    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> float:
        """Most bytes on the device of any rank."""
        return max(stage.peak for stage in self.stages)

    @property
    def host_peak(self) -> float:
        """Most bytes on the host by any rank, where that is another memory than the device's."""
        return max(sum(stage.host.values()) for stage in self.stages)

    @property
    def gate_on_device(self) -> bool:
        """Whether the gate's process takes the leading rank's device."""
        return self.plan.device == "cuda" and self.plan.config.gate.device != "cpu"

    @property
    def gate_process(self) -> float:
        """Bytes of the one process that answers the gate's probes: its weights, and itself; 0 without a gate.

        It holds the first weights and, where no engine answers in its place, a candidate, both undivided.
        """
        gate, training = self.plan.config.gate, self.plan.config.training
        if not gate.enabled:
            return 0.0
        undivided = training.model_copy(update=dict.fromkeys(SIZES, 1))
        config = self.plan.config.model_copy(update={"training": undivided})
        count = parameters.count(dataclasses.replace(self.plan, config=config, world_size=1), 0)
        models = (1 if gate.engine_url else 2) * self.plan.dtype_bytes * (count.dense + count.experts)
        return models + (CUDA_BASE_BYTES if self.gate_on_device else HOST_BASE_BYTES)

    @property
    def leading_peak(self) -> float:
        """Most bytes on the leading rank's device; on a CPU that is the host."""
        beside = self.gate_process if self.gate_on_device or self.plan.device == "cpu" else 0.0
        return self.stages[0].peak + beside


def plan_for(
    config: Config,
    *,
    arch: Architecture | None = None,
    world_size: int | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    directory: Path | None = None,
) -> Plan:
    """What the memory depends on, from the configuration and this machine.

    ``world_size``: processes; from torchrun's environment when not given, else as few as the layout needs. ``device``:
    whether there is CUDA here when not given. ``directory``: the configuration's, where a custom loss is looked up.

    Raises:
        ConfigError: the student's configuration or the custom loss cannot be read, or is not supported.
    """
    arch = arch or read_architecture(config.model.student_model_path)
    device = device or ("cuda" if cpu.has_cuda() else "cpu")
    fused = device == "cuda" and importlib.util.find_spec("transformer_engine") is not None
    needs = signal_needs(config, directory)
    plan = Plan(
        arch=arch,
        config=config,
        dtype_bytes=DTYPE_BYTES[config.model.dtype],
        world_size=world_size or _world_size(os.environ),
        device=device,
        fused=fused,
        teaches=needs.hint and needs.own_teacher,
    )
    return plan if plan.world_size else dataclasses.replace(plan, world_size=plan.model_ranks)


def _world_size(environ: Mapping[str, str]) -> int:
    return int(environ.get("WORLD_SIZE", "0"))


def estimate(plan: Plan) -> Estimate:
    """Memory of every pipeline stage's ranks."""
    return Estimate(plan, tuple(_stage(plan, stage) for stage in range(plan.pp)))


def _stage(plan: Plan, stage: int) -> StageMemory:
    count = parameters.count(plan, stage)
    held, host = _held(plan, count), _saved(plan, count)
    files = float(plan.dtype_bytes * count.total)
    phases = {
        "a step": FRAGMENTATION[plan.device] * _step(plan, stage, count),
        "the optimizer": 2.0 * 4 * count.largest,
    }
    if plan.device == "cuda":
        return StageMemory(stage, held, phases, {"process": HOST_BASE_BYTES, **host, "files of an export": files})
    return StageMemory(stage, {**held, **host}, {**phases, "an export": files}, {})


def _step(plan: Plan, stage: int, count: parameters.Parameters) -> float:
    """Activations, and what passes by: logits or a layer's gradients, beside those of the largest weight."""
    head = stage == plan.pp - 1
    # A weight's own gradient, before it is added to its buffer; a tied table has two.
    table = float(plan.dtype_bytes * count.largest * (2 if plan.arch.tied and plan.pp == 1 else 1))
    passing = max(activations.passing_bytes(plan), _logits(plan) if head else 0.0)
    return activations.kept_bytes(plan, stage) + table + passing


def _states(plan: Plan, count: parameters.Parameters) -> tuple[int, float]:
    """Weights that are trained, and those of them whose optimizer's state is this rank's."""
    trained = [(count.dense, plan.dp * plan.cp), (count.experts, plan.expert_dp)]
    if plan.config.lora.enabled:
        trained = [(count.adapters, plan.dp * plan.cp)]
    shared = plan.config.training.use_distributed_optimizer
    return sum(number for number, _ in trained), sum(number / (ranks if shared else 1) for number, ranks in trained)


def _held(plan: Plan, count: parameters.Parameters) -> dict[str, float]:
    trained, states = _states(plan, count)
    held = {
        "process": CUDA_BASE_BYTES if plan.device == "cuda" else HOST_BASE_BYTES,
        "weights": float(plan.dtype_bytes * count.total),
        "gradients": 4.0 * trained,
        "AdamW moments": 8.0 * states,
        "float32 weights": 4.0 * states if plan.dtype_bytes < 4 else 0.0,
        **_copies(plan, count),
    }
    return {name: size for name, size in held.items() if size}


def _saved(plan: Plan, count: parameters.Parameters) -> dict[str, float]:
    """Second copies of what training changes, in the host's memory."""
    trained, states = _states(plan, count)
    changes = plan.dtype_bytes * trained + (12.0 if plan.dtype_bytes < 4 else 8.0) * states
    changes += _copies(plan, count)["moving average"]
    kept = {LAST_RELEASE: changes} if plan.config.gate.enabled else {}
    return {**kept, CHECKPOINT: changes}


def _copies(plan: Plan, count: parameters.Parameters) -> dict[str, float]:
    """Of the model, for the trainer's own teacher and for the reference; with adapters the student is both."""
    config, teaches = plan.config, plan.teaches
    average = 4.0 * (count.adapters if config.lora.enabled else count.total)
    found = {"moving average": average if teaches and config.prm.teacher_weights == "ema" else 0.0}
    if config.lora.enabled:
        return found
    copy = float(plan.dtype_bytes * count.total)
    own = teaches and config.prm.teacher_weights != "current"
    # First weights that are the teacher's already are held once.
    shared = teaches and config.prm.teacher_weights == "initial"
    found["teacher's copy"] = copy if own else 0.0
    found["reference's copy"] = copy if config.training.kl_coef and not shared else 0.0
    return found


def _logits(plan: Plan) -> float:
    vocabulary = plan.arch.padded_vocab(plan.tp) / plan.tp
    return LOGITS_COPIES * min(float(CHUNK_BYTES), 4.0 * vocabulary * plan.positions)
