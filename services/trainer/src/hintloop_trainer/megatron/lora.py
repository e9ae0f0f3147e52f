"""Low-rank adapters beside megatron's linear layers: y = W x + alpha / rank * B A x (LoRA, arXiv 2106.09685).

Owns the adapters' weights, how they are cut over ranks, and what they add to a layer's output; files are
:mod:`adapter`'s. The layers that megatron fuses (q, k, v; gate, up) get one A and one B for each part, so that they are
exactly the adapters that Hugging Face's layers would have. The student's own weights are frozen: they have no
gradient buffers and no optimizer state. Adapters have the model's dtype, as engines do; the optimizer keeps them in
float32 besides.
Legend: S = positions, B = sequences, R = rank, I = a layer's inputs, O = its outputs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from hintloop_contract.config.lora import LoraSection
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import nn

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron.model import Architecture, PolicyModel
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.megatron.weights import ADAPTERS


@dataclass(frozen=True, slots=True)
class Fused:
    """One of megatron's linear layers and the Hugging Face layers it is made of."""

    name: str
    parts: tuple[str, ...]
    by_rows: bool
    """Cut over tensor-parallel ranks along its inputs (megatron's row-parallel layers), else along its outputs."""


FUSED = (
    Fused("self_attention.linear_qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), by_rows=False),
    Fused("self_attention.linear_proj", ("self_attn.o_proj",), by_rows=True),
    Fused("mlp.linear_fc1", ("mlp.gate_proj", "mlp.up_proj"), by_rows=False),
    Fused("mlp.linear_fc2", ("mlp.down_proj",), by_rows=True),
)


def sizes(arch: Architecture) -> dict[str, tuple[int, int]]:
    """``(O, I)`` of every Hugging Face layer that adapters can stand beside, over all ranks."""
    hidden, queries, keys = arch.hidden_size, arch.num_heads * arch.head_dim, arch.num_kv_groups * arch.head_dim
    return {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (arch.ffn_size, hidden),
        "mlp.up_proj": (arch.ffn_size, hidden),
        "mlp.down_proj": (hidden, arch.ffn_size),
    }


class Adapter(nn.Module):
    """A ``[R, I]`` and B ``[O, R]`` of one Hugging Face layer, this tensor-parallel rank's part of them."""

    def __init__(self, name: str, a_RI: torch.Tensor, b_OR: torch.Tensor, *, by_rows: bool) -> None:
        """``name`` is the layer's, as ``model.layers.3.self_attn.q_proj``."""
        super().__init__()
        self.name = name
        self.by_rows = by_rows
        self.lora_a = nn.Parameter(a_RI)
        self.lora_b = nn.Parameter(b_OR)
        # Without the mark, the gradient's norm would count one rank's part for all.
        if by_rows:
            set_tensor_model_parallel_attributes(self.lora_a, True, 1, 1)
        else:
            set_tensor_model_parallel_attributes(self.lora_b, True, 0, 1)


class FusedAdapters(nn.Module):
    """The adapters of one of megatron's layers; a part without one gets zeros."""

    def __init__(
        self, adapters: dict[str, Adapter], widths: list[tuple[str, int]], groups: int, scale: float, *, sequence: bool
    ) -> None:
        """``widths``: outputs of each part on this rank, which the layer interleaves in ``groups``.

        ``sequence``: positions are divided over tensor-parallel ranks outside the layer.
        """
        super().__init__()
        self.active = True
        self.parts = nn.ModuleDict(adapters)
        self._widths = widths
        self._groups = groups
        self.scale = scale
        self._sequence = sequence
        self._by_rows = next(iter(adapters.values())).by_rows
        if sequence:
            # Each rank sees only its own positions through the factor that is whole on all of them.
            for adapter in adapters.values():
                whole: Any = adapter.lora_b if self._by_rows else adapter.lora_a
                whole.sequence_parallel = True

    def adapters(self) -> list[Adapter]:
        """In the order of the layer's parts."""
        return [self.parts[name] for name, _ in self._widths if name in self.parts]  # type: ignore[misc]  # of any module

    def forward(self, input_SBI: torch.Tensor) -> torch.Tensor:
        """What is added to the layer's output, ``[S, B, O]`` of this rank."""
        adapters = self.adapters()
        stacked = torch.cat([adapter.lora_a for adapter in adapters])
        inner = self._exchanged(functional.linear(input_SBI, stacked)) * self.scale
        pieces = inner.chunk(len(adapters), dim=-1)
        found = {
            adapter.name.rsplit(".", 1)[-1]: functional.linear(piece, adapter.lora_b)
            for adapter, piece in zip(adapters, pieces, strict=True)
        }
        if len(self._widths) == 1:
            return next(iter(found.values()))
        lead = inner.shape[:-1]
        columns = [
            (found[name] if name in found else inner.new_zeros(*lead, width)).reshape(*lead, self._groups, -1)
            for name, width in self._widths
        ]
        return torch.cat(columns, dim=-1).flatten(-2)

    def _exchanged(self, inner: torch.Tensor) -> torch.Tensor:
        """Between A and B the width is the rank: what tensor-parallel ranks must exchange is least there.

        Beside a layer cut along its outputs, A x is the same on all ranks and its gradient their sum; beside one cut
        along its inputs, A x is the sum and its gradient the same.
        """
        group = parallel_state.get_tensor_model_parallel_group()
        if self._by_rows and self._sequence:
            return _tensor(reduce_scatter_to_sequence_parallel_region(inner, group=group))
        if self._by_rows:
            return _tensor(reduce_from_tensor_model_parallel_region(inner, group=group))
        if self._sequence:
            return _tensor(gather_from_sequence_parallel_region(inner, group=group))
        return _tensor(copy_to_tensor_model_parallel_region(inner, group=group))


def _tensor(value: Any) -> torch.Tensor:
    found: torch.Tensor = value
    return found


def _add(linear: Any, arguments: tuple[Any, ...], output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
    """Forward hook of a linear layer."""
    adapters: FusedAdapters = getattr(linear, ADAPTERS)
    if not adapters.active:
        return output
    result, bias = output
    return result + adapters(_normalised(linear, arguments[0])), bias


def _normalised(linear: Any, input_SBI: torch.Tensor) -> torch.Tensor:
    """Transformer Engine's fused layers take the norm's input; adapters see what the weight sees."""
    weight = getattr(linear, "layer_norm_weight", None)
    if weight is None:
        return input_SBI
    return functional.rms_norm(input_SBI, weight.shape, weight, linear.config.layernorm_epsilon)


def attach(model: PolicyModel, arch: Architecture, layout: Layout, lora: LoraSection, seed: int) -> None:
    """Freeze the model and put adapters beside its layers: A random as in PEFT, B zero, so that nothing changes yet.

    A is drawn from ``seed`` and the layer's name, whole, and then cut: the same under every layout.

    Raises:
        ModelError: the rank is not below the sizes of a layer, or a layer is not there (experts of a mixture).
    """
    _check_rank(arch, lora)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.decoder.layers:
        for fused in FUSED:
            _attach_to(layer, fused, arch, layout, lora, seed)
    if layout.first_stage and model.config.recompute_granularity == "full":
        # Recomputed layers hand no gradient to their parameters unless their input asks for one.
        model.embedding.register_forward_hook(_ask_for_gradient)


def _ask_for_gradient(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() else output


def _check_rank(arch: Architecture, lora: LoraSection) -> None:
    for name, (num_outputs, num_inputs) in sizes(arch).items():
        if name.rsplit(".", 1)[-1] in lora.modules and lora.rank > min(num_outputs, num_inputs):
            raise ModelError(
                f"lora.rank {lora.rank} is above {min(num_outputs, num_inputs)}, the smaller side of the student's "
                f"{name} [{num_outputs}, {num_inputs}]: nothing would be low-rank; set it to at most that"
            )


def _attach_to(layer: Any, fused: Fused, arch: Architecture, layout: Layout, lora: LoraSection, seed: int) -> None:
    wanted = [part for part in fused.parts if part.rsplit(".", 1)[-1] in lora.modules]
    if not wanted:
        return
    linear = _linear(layer, fused, wanted)
    adapters = {}
    for part in wanted:
        name = f"model.layers.{layer.layer_number - 1}.{part}"
        adapter = _make(name, sizes(arch)[part], lora.rank, layout, seed, by_rows=fused.by_rows)
        adapters[part.rsplit(".", 1)[-1]] = adapter.to(device=linear.weight.device, dtype=linear.weight.dtype)
    cut = 1 if fused.by_rows else layout.tp_size
    widths = [(part.rsplit(".", 1)[-1], sizes(arch)[part][0] // cut) for part in fused.parts]
    groups = arch.num_kv_groups // layout.tp_size if len(fused.parts) == 3 else 1
    sequence = bool(layer.config.sequence_parallel and layout.tp_size > 1)
    setattr(linear, ADAPTERS, FusedAdapters(adapters, widths, groups, lora.scale, sequence=sequence))
    linear.register_forward_hook(_add)


def _linear(layer: Any, fused: Fused, wanted: list[str]) -> Any:
    found = layer
    for step in fused.name.split("."):
        found = getattr(found, step, None)
    if found is None:
        names = ", ".join(part.rsplit(".", 1)[-1] for part in wanted)
        raise ModelError(
            f"lora.target_modules: {names} of a mixture of experts are not supported; name only some of "
            "q_proj, k_proj, v_proj, o_proj"
        )
    return found


def _make(name: str, size: tuple[int, int], rank: int, layout: Layout, seed: int, *, by_rows: bool) -> Adapter:
    num_outputs, num_inputs = size
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    # PEFT's kaiming_uniform_(a = sqrt 5) comes to this bound.
    bound = 1.0 / math.sqrt(num_inputs)
    a_RI = torch.empty(rank, num_inputs).uniform_(-bound, bound, generator=generator)
    if by_rows:
        mine = a_RI.chunk(layout.tp_size, dim=1)[layout.tp_rank].contiguous()
        return Adapter(name, mine, torch.zeros(num_outputs, rank), by_rows=True)
    return Adapter(name, a_RI, torch.zeros(num_outputs // layout.tp_size, rank), by_rows=False)


def _fused_adapters(model: nn.Module) -> list[FusedAdapters]:
    return [module for module in model.modules() if isinstance(module, FusedAdapters)]


def adapters(model: nn.Module) -> list[Adapter]:
    """This rank's adapters, in the order of the model; empty without any."""
    return [adapter for fused in _fused_adapters(model) for adapter in fused.adapters()]


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within it the model is the student as it was at first; nothing changes for a model without adapters."""
    found = _fused_adapters(model)
    before = [fused.active for fused in found]
    for fused in found:
        fused.active = False
    try:
        yield
    finally:
        for fused, active in zip(found, before, strict=True):
            fused.active = active


def scale(model: nn.Module) -> float:
    """What B A is multiplied with; 0 for a model without adapters."""
    return next((fused.scale for fused in _fused_adapters(model)), 0.0)
