"""Adapters in and out of the model: gathered over ranks, merged into the weights, under PEFT's names, in checkpoints.

Owns names and values; what is written to disk, and how, is :mod:`export`'s.
Legend: R = rank, I = a layer's inputs, O = its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hintloop_contract.config.lora import LoraSection
from megatron.core import parallel_state
from megatron.core.utils import make_sharded_tensor_for_checkpoint, make_tp_sharded_tensor_for_checkpoint

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import lora, weights
from hintloop_trainer.megatron.lora import Adapter
from hintloop_trainer.megatron.model import Architecture
from hintloop_trainer.megatron.parallel import Layout

_KEY = "lora."
_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class Pair:
    """Both factors of one layer's adapter, whole."""

    a_RI: torch.Tensor
    b_OR: torch.Tensor

    def merged(self, weight_OI: torch.Tensor, scale: float) -> torch.Tensor:
        """``W + scale * B A``, added in float32, in the dtype of ``W``."""
        added = self.b_OR.float() @ self.a_RI.float()
        return torch.add(weight_OI.float(), added, alpha=scale).to(weight_OI.dtype)


def gather(model: torch.nn.Module, layout: Layout) -> dict[str, Pair]:
    """Whole adapters of this pipeline stage by the layer's name, on the CPU. Collective over tensor-parallel ranks."""
    return {adapter.name: _whole(adapter, layout) for adapter in lora.adapters(model)}


def _whole(adapter: Adapter, layout: Layout) -> Pair:
    a_RI, b_OR = adapter.lora_a.detach(), adapter.lora_b.detach()
    if adapter.by_rows:
        a_RI = _joined(a_RI, 1, layout)
    else:
        b_OR = _joined(b_OR, 0, layout)
    return Pair(a_RI.cpu(), b_OR.cpu())


def _joined(piece: torch.Tensor, axis: int, layout: Layout) -> torch.Tensor:
    if layout.tp_size == 1:
        return piece
    shards = [torch.empty_like(piece) for _ in range(layout.tp_size)]
    dist.all_gather(shards, piece.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    return torch.cat(shards, dim=axis)


@torch.no_grad()
def export_tensors(
    model: torch.nn.Module, arch: Architecture, layout: Layout, take: Callable[[str, torch.Tensor], None]
) -> None:
    """As :func:`weights.export_tensors`, with what the adapters add merged into the weights, where there are any."""
    pairs, scale = gather(model, layout), lora.scale(model)

    def merge(name: str, tensor: torch.Tensor) -> None:
        pair = pairs.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        take(name, tensor if pair is None else pair.merged(tensor, scale))

    weights.export_tensors(model, arch, layout, merge)


def peft_tensors(pairs: dict[str, Pair]) -> dict[str, torch.Tensor]:
    """Adapters under the names that PEFT gives them."""
    found = {}
    for name, pair in pairs.items():
        found[f"{_PEFT_PREFIX}{name}.lora_A.weight"] = pair.a_RI.contiguous()
        found[f"{_PEFT_PREFIX}{name}.lora_B.weight"] = pair.b_OR.contiguous()
    return found


def peft_config(section: LoraSection, base: str) -> dict[str, Any]:
    """``adapter_config.json`` of adapters beside the model in ``base``."""
    alpha = section.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": section.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "target_modules": list(section.modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": False,
    }


def named(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """This rank's trained tensors by the layer's Hugging Face name, which is the same under every layout."""
    found = {}
    for adapter in lora.adapters(model):
        found[f"{_KEY}{adapter.name}.lora_a"] = adapter.lora_a
        found[f"{_KEY}{adapter.name}.lora_b"] = adapter.lora_b
    return found


def sharded(model: torch.nn.Module, prefix: str = "") -> dict[str, Any]:
    """What a checkpoint has to hold of a model with adapters: these alone, the student's own weights do not change."""
    found: dict[str, Any] = {}
    parameters: dict[str, Any] = {**named(model)}
    for name, parameter in parameters.items():
        key = prefix + name
        # Megatron's mark; a tensor without it is whole on every rank.
        if getattr(parameter, "tensor_model_parallel", False):
            found[key] = make_tp_sharded_tensor_for_checkpoint(parameter, key, parameter.partition_dim)
        else:
            found[key] = make_sharded_tensor_for_checkpoint(parameter, key)
    return found


@torch.no_grad()
def restore(model: torch.nn.Module, loaded: dict[str, Any]) -> None:
    """Take what :func:`sharded` described, read from a checkpoint.

    Raises:
        KeyError: an adapter is not there.
    """
    for name, parameter in named(model).items():
        parameter.copy_(loaded[name])


@torch.no_grad()
def load(model: torch.nn.Module, layout: Layout, directory: str | Path) -> None:
    """Fill this rank's adapters from a PEFT directory of the same rank and layers, cast to the adapters' dtype.

    Raises:
        ModelError: a tensor is missing or has another shape, or one of the file's is of no adapter.
    """
    source = weights.Checkpoint(directory)
    used = set()
    for found in lora.adapters(model):
        for letter, parameter, cut in (("A", found.lora_a, found.by_rows), ("B", found.lora_b, not found.by_rows)):
            name = f"{_PEFT_PREFIX}{found.name}.lora_{letter}.weight"
            whole = source.read(name)
            axis = 1 if letter == "A" else 0
            piece = whole.chunk(layout.tp_size, dim=axis)[layout.tp_rank] if cut else whole
            if piece.shape != parameter.shape:
                raise ModelError(
                    f"{name}: the file gives shape {tuple(piece.shape)} for an adapter of shape "
                    f"{tuple(parameter.shape)}; set lora.rank and lora.target_modules as they were"
                )
            parameter.copy_(piece)
            used.add(name)
    unused = source.names() - used
    if layout.pp_size == 1 and unused:
        raise ModelError(
            f"{directory} holds adapters of other layers: {', '.join(sorted(unused)[:3])}; set lora.target_modules "
            "as it was"
        )
