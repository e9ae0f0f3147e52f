"""Hugging Face weights in and out of megatron: names, layouts, sharding.

Owns the correspondence of names and how a tensor is cut over ranks. Loading reads one parameter at a time;
exporting gathers one at a time, so neither ever holds a second whole model. Files are :mod:`export`'s.
A *full* tensor is megatron's parameter over all tensor-parallel ranks; Hugging Face's are its *parts*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from megatron.core import parallel_state
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
from safetensors import safe_open

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron.model import Architecture
from hintloop_trainer.megatron.parallel import Layout


class Cut(Enum):
    """How a full tensor is divided over tensor-parallel ranks."""

    NONE = "none"  # every rank has it whole
    COLUMNS = "columns"  # along the second axis
    HALVES = "halves"  # gate and up, stacked: each half along the first axis
    GROUPS = "groups"  # q, k, v interleaved by key-value group, along the first axis
    VOCAB = "vocab"  # along the first axis, padded to a multiple of the ranks


@dataclass(frozen=True, slots=True)
class Slot:
    """One megatron parameter and the Hugging Face tensors it is made of."""

    names: tuple[str, ...]
    """Names under which megatron's layer specs hold it; the first that exists is meant."""
    parts: tuple[str, ...]
    cut: Cut


EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
#: Attribute of a linear layer that holds adapters (see :mod:`lora`).
ADAPTERS = "lora_adapters"


def _qkv(kind: str) -> tuple[str, ...]:
    return tuple(f"self_attn.{letter}_proj.{kind}" for letter in "qkv")


# The second name of a norm is Transformer Engine's, which fuses it into the linear layer behind it.
LAYER_SLOTS = (
    Slot(
        ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
        ("input_layernorm.weight",),
        Cut.NONE,
    ),
    Slot(("self_attention.linear_qkv.weight",), _qkv("weight"), Cut.GROUPS),
    Slot(("self_attention.linear_qkv.bias",), _qkv("bias"), Cut.GROUPS),
    Slot(("self_attention.q_layernorm.weight",), ("self_attn.q_norm.weight",), Cut.NONE),
    Slot(("self_attention.k_layernorm.weight",), ("self_attn.k_norm.weight",), Cut.NONE),
    Slot(("self_attention.linear_proj.weight",), ("self_attn.o_proj.weight",), Cut.COLUMNS),
    Slot(
        ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
        ("post_attention_layernorm.weight",),
        Cut.NONE,
    ),
    Slot(("mlp.linear_fc1.weight",), ("mlp.gate_proj.weight", "mlp.up_proj.weight"), Cut.HALVES),
    Slot(("mlp.linear_fc2.weight",), ("mlp.down_proj.weight",), Cut.COLUMNS),
    Slot(("mlp.router.weight",), ("mlp.gate.weight",), Cut.NONE),
)

# Of one expert: {local} counts those of this rank, {expert} all of them. The second name is Transformer Engine's.
EXPERT_SLOTS = (
    Slot(
        ("mlp.experts.local_experts.{local}.linear_fc1.weight", "mlp.experts.linear_fc1.weight{local}"),
        ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"),
        Cut.HALVES,
    ),
    Slot(
        ("mlp.experts.local_experts.{local}.linear_fc2.weight", "mlp.experts.linear_fc2.weight{local}"),
        ("mlp.experts.{expert}.down_proj.weight",),
        Cut.COLUMNS,
    ),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter of this rank, and the names and cut of its parts."""

    parameter: torch.nn.Parameter
    parts: tuple[str, ...]
    cut: Cut
    copy: bool = False
    """A second holder of the same tensor (a tied head on the last pipeline stage); not exported."""
    others: tuple[tuple[str, ...], ...] = ()
    """Of an expert, which is whole on its rank: the parts that each of the ranks which share the experts has here."""


def places(model: torch.nn.Module, arch: Architecture, layout: Layout) -> Iterator[Place]:
    """Every parameter of this rank, in the order of the model; adapters beside them are none of the student's.

    Raises:
        ModelError: a parameter has no counterpart; nothing may stay as it was initialised.
    """
    parameters = {name: found for name, found in model.named_parameters() if f".{ADAPTERS}." not in name}
    yield from _outer_places(parameters, arch)
    num_local = arch.num_layers // layout.pp_size
    for local in range(num_local):
        prefix, number = f"decoder.layers.{local}.", layout.pp_rank * num_local + local
        for slot in LAYER_SLOTS:
            parameter = _take(parameters, prefix, slot)
            if parameter is not None:
                yield Place(parameter, tuple(f"model.layers.{number}.{part}" for part in slot.parts), slot.cut)
        yield from _expert_places(parameters, arch, layout, prefix, f"model.layers.{number}.")
    if parameters:
        raise ModelError(f"megatron parameters without a Hugging Face counterpart: {', '.join(sorted(parameters))}")


def _take(parameters: dict[str, torch.nn.Parameter], prefix: str, slot: Slot, **numbers: int) -> Any:
    for name in slot.names:
        parameter = parameters.pop(prefix + name.format(**numbers), None)
        if parameter is not None:
            return parameter
    return None


def _expert_places(
    parameters: dict[str, torch.nn.Parameter], arch: Architecture, layout: Layout, prefix: str, target: str
) -> Iterator[Place]:
    num_experts = arch.mixture.num_experts if arch.mixture else 0
    num_local = num_experts // layout.ep_size
    for local in range(num_local):
        for slot in EXPERT_SLOTS:
            parameter = _take(parameters, prefix, slot, local=local)
            if parameter is None:
                continue
            everyones = tuple(
                tuple(target + part.format(expert=rank * num_local + local) for part in slot.parts)
                for rank in range(layout.ep_size)
            )
            yield Place(parameter, everyones[layout.ep_rank], slot.cut, others=everyones)


def _outer_places(parameters: dict[str, torch.nn.Parameter], arch: Architecture) -> Iterator[Place]:
    embedding = parameters.pop("embedding.word_embeddings.weight", None)
    if embedding is not None:
        yield Place(embedding, (EMBEDDING,), Cut.VOCAB)
    norm = parameters.pop("decoder.final_layernorm.weight", None)
    if norm is not None:
        yield Place(norm, ("model.norm.weight",), Cut.NONE)
    head = parameters.pop("output_layer.weight", None)
    if head is not None:
        yield Place(head, (EMBEDDING if arch.tied else HEAD,), Cut.VOCAB, copy=arch.tied)


def join(parts: list[torch.Tensor], cut: Cut, arch: Architecture) -> torch.Tensor:
    """Full tensor from its parts."""
    if cut is Cut.GROUPS:
        groups = arch.num_kv_groups
        grouped = [part.reshape(groups, part.shape[0] // groups, *part.shape[1:]) for part in parts]
        return torch.cat(grouped, dim=1).flatten(0, 1)
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def part(full: torch.Tensor, cut: Cut, arch: Architecture) -> list[torch.Tensor]:
    """Parts from a full tensor; undoes :func:`join`."""
    if cut is Cut.HALVES:
        return list(full.chunk(2))
    if cut is Cut.GROUPS:
        groups, dim = arch.num_kv_groups, arch.head_dim
        grouped = full.reshape(groups, full.shape[0] // groups, *full.shape[1:])
        sizes = [arch.num_heads // groups * dim, dim, dim]
        return [piece.flatten(0, 1) for piece in torch.split(grouped, sizes, dim=1)]
    return [full[: arch.vocab_size]] if cut is Cut.VOCAB else [full]


def shard(full: torch.Tensor, cut: Cut, arch: Architecture, tp_rank: int, tp_size: int) -> torch.Tensor:
    """This rank's piece of a full tensor."""
    if cut is Cut.NONE:
        return full
    if cut is Cut.VOCAB:
        full = functional.pad(full, (0, 0, 0, arch.padded_vocab(tp_size) - full.shape[0]))
    if cut is Cut.HALVES:
        return torch.cat([half.chunk(tp_size)[tp_rank] for half in full.chunk(2)])
    return full.chunk(tp_size, dim=1 if cut is Cut.COLUMNS else 0)[tp_rank]


def unshard(shards: list[torch.Tensor], cut: Cut) -> torch.Tensor:
    """Full tensor from every rank's piece; undoes :func:`shard`."""
    if cut is Cut.NONE or len(shards) == 1:
        return shards[0]
    if cut is Cut.HALVES:
        halves = [piece.chunk(2) for piece in shards]
        return torch.cat([half[side] for side in (0, 1) for half in halves])
    return torch.cat(shards, dim=1 if cut is Cut.COLUMNS else 0)


def _keys(handle: Any) -> list[str]:
    return list(handle.keys())


def _per_expert(name: str, handle: Any) -> dict[str, tuple[Any, str, tuple[slice | int, ...]]]:
    """Names of single experts' matrices, where ``name`` stacks all experts' ``[E, out, in]``; else empty."""
    base, _, kind = name.rpartition(".")
    if not base.endswith(".experts") or kind not in ("gate_up_proj", "down_proj"):
        return {}
    num_experts, rows, _ = handle.get_slice(name).get_shape()
    halves = {"down_proj": slice(None)}
    if kind == "gate_up_proj":
        halves = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
    return {
        f"{base}.{expert}.{part}.weight": (handle, name, (expert, half))
        for expert in range(num_experts)
        for part, half in halves.items()
    }


class Checkpoint:
    """Lazy reader of a directory's safetensors files. Experts stacked in one tensor are read as single ones."""

    def __init__(self, directory: str | Path) -> None:
        """Open every file of ``directory``; reads headers only.

        Raises:
            ModelError: there are no safetensors files.
        """
        files = sorted(Path(directory).glob("*.safetensors"))
        if not files:
            raise ModelError(f"{str(directory)!r} holds no *.safetensors file; save the model as safetensors")
        self._where: dict[str, tuple[Any, str, tuple[slice | int, ...]]] = {}
        for file in files:
            handle = safe_open(str(file), framework="pt")
            for name in _keys(handle):
                self._where.update(_per_expert(name, handle) or {name: (handle, name, ())})

    def names(self) -> set[str]:
        """Names of the tensors."""
        return set(self._where)

    def read(self, name: str) -> torch.Tensor:
        """One tensor, in the dtype of the file.

        Raises:
            ModelError: it is not there.
        """
        if name not in self._where:
            raise ModelError(f"the student's safetensors lack {name!r}")
        handle, stored, at = self._where[name]
        tensor: torch.Tensor = handle.get_slice(stored)[at] if at else handle.get_tensor(stored)
        return tensor


@torch.no_grad()
def load(model: torch.nn.Module, arch: Architecture, layout: Layout, directory: str | Path) -> None:
    """Fill this rank's parameters from a Hugging Face directory, cast to the parameters' dtype.

    Raises:
        ModelError: a tensor is missing or has another shape, or one of the files' tensors would go unused.
    """
    source = Checkpoint(directory)
    used: set[str] = set()
    for place in places(model, arch, layout):
        full = join([source.read(name) for name in place.parts], place.cut, arch)
        piece = full if place.others else shard(full, place.cut, arch, layout.tp_rank, layout.tp_size)
        if piece.shape != place.parameter.shape:
            raise ModelError(
                f"{', '.join(place.parts)}: the file gives shape {tuple(piece.shape)} for a parameter of "
                f"shape {tuple(place.parameter.shape)}; config.json and the weights disagree"
            )
        place.parameter.copy_(piece)
        _mark(place)
        used.update(place.parts, *place.others)
    unused = source.names() - used
    if layout.pp_size == 1 and (unused - {HEAD} if arch.tied else unused):
        raise ModelError(f"the student's safetensors hold tensors this model does not use: {', '.join(sorted(unused))}")


def _mark(place: Place) -> None:
    """Tell megatron how the parameter is cut, which it notes only where it initialises weights itself.

    Without it, the gradient's norm would count one rank's part for all.
    """
    if place.cut is not Cut.NONE and not hasattr(place.parameter, "tensor_model_parallel"):
        set_tensor_model_parallel_attributes(place.parameter, True, 1 if place.cut is Cut.COLUMNS else 0, 1)


def gather(place: Place, layout: Layout) -> torch.Tensor:
    """The full tensor of a parameter, on every tensor-parallel rank. Collective over that group."""
    piece = place.parameter.detach().contiguous()
    if layout.tp_size == 1 or place.cut is Cut.NONE or place.others:
        return piece
    shards = [torch.empty_like(piece) for _ in range(layout.tp_size)]
    dist.all_gather(shards, piece, group=parallel_state.get_tensor_model_parallel_group())
    return unshard(shards, place.cut)


@torch.no_grad()
def export_tensors(
    model: torch.nn.Module, arch: Architecture, layout: Layout, take: Callable[[str, torch.Tensor], None]
) -> None:
    """Give every Hugging Face tensor of this pipeline stage to ``take``, on the CPU.

    Collective over tensor- and expert-parallel ranks; all of them are given the same.
    """
    for place in places(model, arch, layout):
        full = gather(place, layout)
        if place.copy:
            continue
        for names, tensor in _everyones(place, full):
            for name, piece in zip(names, part(tensor, place.cut, arch), strict=True):
                take(name, piece.contiguous().cpu())


def _everyones(place: Place, full: torch.Tensor) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The tensors that expert-parallel ranks hold at a place, with the names of their parts."""
    if len(place.others) < 2:
        yield place.parts, full
        return
    shards = [torch.empty_like(full) for _ in place.others]
    dist.all_gather(shards, full.contiguous(), group=parallel_state.get_expert_model_parallel_group())
    yield from zip(place.others, shards, strict=True)
