"""A Hugging Face configuration as a megatron GPT model whose output head is applied by the caller.

Owns the shape of the model; its numbers are :mod:`weights`' business. Llama, Qwen2, Qwen3 and Qwen3-MoE are
supported; what their configurations can ask for and this code does not do is refused, never ignored.
Legend: B = sequences, S = positions, H = hidden size, V = vocabulary of this tensor-parallel rank.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from hintloop_contract.config.layout import LayoutKeys
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import ModuleSpec, TransformerConfig, transformer_layer
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import cpu, sequence
from hintloop_trainer.megatron.attention import CausalAttention
from hintloop_trainer.megatron.mlp import GatedMLP
from hintloop_trainer.megatron.norm import RootMeanSquareNorm
from hintloop_trainer.megatron.parallel import Layout

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts that stand for the feed-forward part of every layer."""

    num_experts: int
    per_token: int
    """Experts that a token goes through."""
    ffn_size: int
    """Intermediate size of one expert."""
    normalised: bool
    """Whether a token's weights of its experts sum to 1."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the trainer must know of the student. Sizes are of the whole model, not of one rank."""

    family: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_groups: int
    head_dim: int
    vocab_size: int
    norm_epsilon: float
    rope_theta: float
    inv_freq: tuple[float, ...] | None
    """Rotary frequencies ``[head_dim / 2]`` when they are scaled, else ``None``."""
    tied: bool
    mixture: Mixture | None = None
    """``None`` for a dense model."""

    def padded_vocab(self, tp_size: int) -> int:
        """Vocabulary rounded up so that every tensor-parallel rank has as many rows."""
        return -(-self.vocab_size // tp_size) * tp_size


def read_architecture(directory: str | Path) -> Architecture:
    """Read ``config.json`` of a model directory.

    Raises:
        ModelError: no configuration there, an unknown family, or a feature that is not supported.
    """
    path = Path(directory)
    if not (path / "config.json").is_file():
        raise ModelError(
            f"model.student_model_path {str(directory)!r} holds no config.json; give a Hugging Face model directory"
        )
    config = AutoConfig.from_pretrained(str(path), local_files_only=True)
    _refuse_unsupported(config)
    rope = dict(config.rope_parameters)
    scaled = rope["rope_type"] != "default"
    return Architecture(
        family=config.model_type,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_groups=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        norm_epsilon=config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        inv_freq=_scaled_frequencies(config, rope["rope_type"]) if scaled else None,
        tied=bool(config.tie_word_embeddings),
        mixture=_read_mixture(config) if config.model_type == "qwen3_moe" else None,
    )


def _read_mixture(config: PretrainedConfig) -> Mixture:
    return Mixture(
        num_experts=config.num_experts,
        per_token=config.num_experts_per_tok,
        ffn_size=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
    )


def _scaled_frequencies(config: PretrainedConfig, rope_type: str) -> tuple[float, ...]:
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"))
    if factor != 1.0:
        raise ModelError(f"rope_parameters: attention factor {factor} is not supported, only 1.0")
    return tuple(frequencies.tolist())


def _refuse_unsupported(config: PretrainedConfig) -> None:
    """Name the first property of ``config`` that this code would get wrong."""
    family = config.model_type
    if family not in FAMILIES:
        raise ModelError(f"model_type {family!r} is not supported; use one of {', '.join(FAMILIES)}")
    rope = getattr(config, "rope_parameters", None) or {}
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    problems = {
        f"rope_type {rope.get('rope_type')!r}": rope.get("rope_type") not in ROPE_TYPES,
        "partial rotary embeddings": rope.get("partial_rotary_factor", 1.0) != 1.0,
        "sliding-window attention": bool(getattr(config, "use_sliding_window", False))
        or layer_types != {"full_attention"},
        f"hidden_act {config.hidden_act!r}": config.hidden_act != "silu",
        "attention_bias": family != "qwen2" and bool(getattr(config, "attention_bias", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "attention_dropout": bool(getattr(config, "attention_dropout", 0.0)),
        "a dense layer among those with experts (mlp_only_layers, decoder_sparse_step)": bool(
            getattr(config, "mlp_only_layers", None)
        )
        or getattr(config, "decoder_sparse_step", 1) != 1,
        "norm_topk_prob with one expert per token (whose router learns nothing)": bool(
            getattr(config, "norm_topk_prob", False)
        )
        and config.num_experts_per_tok == 1,
    }
    for problem, present in problems.items():
        if present:
            raise ModelError(f"{problem} of the student ({family}) is not supported; use a model without it")


def check_layout(arch: Architecture, layout: Layout) -> None:
    """Refuse a layout that cannot split this model evenly, or that its layers here cannot do."""
    tp = "tensor_model_parallel_size", layout.tp_size
    # An expert is whole on its rank.
    ffn_size = 0 if arch.mixture else arch.ffn_size
    experts = arch.mixture.num_experts if arch.mixture else 1
    for (key, value), size, of_what in (
        (tp, arch.num_heads, f"{arch.num_heads} attention heads"),
        (tp, arch.num_kv_groups, f"{arch.num_kv_groups} key-value groups"),
        (tp, ffn_size, f"intermediate_size {ffn_size}"),
        (("pipeline_model_parallel_size", layout.pp_size), arch.num_layers, f"{arch.num_layers} layers"),
        (("expert_model_parallel_size", layout.ep_size), experts, f"{experts} expert(s)"),
    ):
        if size % value:
            raise ModelError(f"training.{key} {value} does not divide the student's {of_what}; use a divisor of {size}")
    if arch.mixture and layout.tp_size > 1 and not layout.sequence_parallel:
        raise ModelError(
            f"training.tensor_model_parallel_size {layout.tp_size} of a mixture of experts needs the sequence divided "
            "as well; set training.sequence_parallel = true"
        )
    if arch.mixture and layout.tp_size > 1 and layout.ep_size == 1:
        raise ModelError(
            f"training.tensor_model_parallel_size {layout.tp_size} divides a mixture by expert; set "
            f"training.expert_model_parallel_size = {layout.tp_size}, or more"
        )
    if layout.cp_size > 1 and not uses_transformer_engine():
        raise ModelError(
            f"training.context_parallel_size {layout.cp_size} needs the attention of Transformer Engine on GPUs, which "
            "is not here; set 1, or install transformer-engine where there is CUDA"
        )


def uses_transformer_engine() -> bool:
    """Whether layers come from Transformer Engine: with CUDA, where it is installed."""
    return cpu.has_cuda() and importlib.util.find_spec("transformer_engine") is not None


def transformer_config(
    arch: Architecture, layout: Layout, dtype: torch.dtype, keys: LayoutKeys | None = None
) -> TransformerConfig:
    """Megatron's configuration for this student; gradients are divided by the whole batch's token count.

    Of ``keys`` those on recomputation are read; nothing is recomputed without.
    """
    fused = uses_transformer_engine()
    keys = keys or LayoutKeys()
    return TransformerConfig(
        num_layers=arch.num_layers,
        hidden_size=arch.hidden_size,
        ffn_hidden_size=arch.ffn_size,
        num_attention_heads=arch.num_heads,
        num_query_groups=arch.num_kv_groups,
        kv_channels=arch.head_dim,
        layernorm_epsilon=arch.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=arch.family in ("qwen3", "qwen3_moe"),
        add_qkv_bias=arch.family == "qwen2",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        **_division_settings(layout),
        recompute_granularity=keys.recompute_granularity,
        recompute_method=keys.recompute_method,
        recompute_num_layers=keys.recompute_num_layers,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Without experts, too: the default dispatcher forbids sequences of different lengths.
        moe_token_dispatcher_type="alltoall",
        **_mixture_settings(arch.mixture),
        calculate_per_token_loss=True,
        use_cpu_initialization=not cpu.has_cuda(),
        perform_initialization=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=fused,
        bias_dropout_fusion=fused,
        apply_rope_fusion=fused,
        persist_layer_norm=False,
        cuda_graph_scope=[],
    )


def _division_settings(layout: Layout) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tp_size,
        "pipeline_model_parallel_size": layout.pp_size,
        "context_parallel_size": layout.cp_size,
        "expert_model_parallel_size": layout.ep_size,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": layout.sequence_parallel,
        "variable_seq_lengths": layout.pp_size > 1,
    }


def _mixture_settings(mixture: Mixture | None) -> dict[str, Any]:
    if mixture is None:
        return {}
    # Megatron leaves the name undefined where Transformer Engine is absent, and asks whether it is None.
    vars(moe_utils).setdefault("te_general_gemm", None)
    return {
        "num_moe_experts": mixture.num_experts,
        "moe_ffn_hidden_size": mixture.ffn_size,
        "moe_router_topk": mixture.per_token,
        "moe_router_pre_softmax": not mixture.normalised,
        "moe_router_dtype": "fp32",
        # What is learned is the configured loss alone, so that the router's share of it is not diluted.
        "moe_router_load_balancing_type": "none",
        "moe_grouped_gemm": uses_transformer_engine(),
    }


class PolicyModel(GPTModel):  # type: ignore[misc]  # megatron-core ships no types
    """A GPT model that stops before its output head.

    ``forward(input_ids, position_ids, attention_mask)`` gives the normalised hidden states ``[S, B, H]``;
    :meth:`head` gives logits for chosen rows, so that logits of a whole batch never exist at once. Where positions are
    divided over ranks, that happens inside: every rank is given whole sequences, and has whole hidden states back.
    """

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor:
        """Hidden states ``[S, B, H]`` on the last stage; on others, what the next one takes."""
        length = input_ids.shape[1]
        ids, positions, mask = sequence.divide(self.config, input_ids, position_ids, attention_mask)
        hidden: torch.Tensor = super().forward(ids, positions, mask, **kwargs)
        return sequence.join(self.config, hidden, length) if self.post_process else hidden

    def _postprocess(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states

    def head(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Logits ``[N, V]`` of this tensor-parallel rank, in the model's dtype."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits_N1V, _ = self.output_layer(hidden_NH.unsqueeze(1), weight=weight)
        logits: torch.Tensor = logits_N1V.squeeze(1)
        return logits


def _layers(config: TransformerConfig, num_local: int) -> TransformerBlockSubmodules | ModuleSpec:
    """The parts that a stage's layers are built from."""
    experts = {"num_experts": config.num_moe_experts, "moe_grouped_gemm": config.moe_grouped_gemm}
    if uses_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm, **experts)
    layer = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm", **experts)
    parts, attention = layer.submodules, layer.submodules.self_attention.submodules
    attention.core_attention = CausalAttention
    if config.num_moe_experts is None:
        parts.mlp.module = GatedMLP
        # Megatron warns of a class that it does not know by name, once a layer, and builds it as it should.
        logging.getLogger(transformer_layer.__name__).setLevel(logging.ERROR)
    parts.input_layernorm = parts.pre_mlp_layernorm = RootMeanSquareNorm
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RootMeanSquareNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * num_local, layer_norm=RootMeanSquareNorm)


def _construct(
    arch: Architecture, layout: Layout, dtype: torch.dtype, max_seq_len: int, keys: LayoutKeys | None
) -> PolicyModel:
    config = transformer_config(arch, layout, dtype, keys)
    model = PolicyModel(
        config=config,
        transformer_layer_spec=_layers(config, arch.num_layers // layout.pp_size),
        vocab_size=arch.padded_vocab(layout.tp_size),
        max_sequence_length=max_seq_len,
        pre_process=layout.first_stage,
        post_process=layout.last_stage,
        position_embedding_type="rope",
        rotary_base=arch.rope_theta,
        share_embeddings_and_output_weights=arch.tied,
    )
    if layout.last_stage and config.sequence_parallel:
        # The head is given whole rows; the gradient of these is a sum over its ranks.
        model.output_layer.sequence_parallel = False
        model.output_layer.allreduce_dgrad = True
    return model


def build(
    arch: Architecture, layout: Layout, dtype: torch.dtype, max_seq_len: int, keys: LayoutKeys | None = None
) -> PolicyModel:
    """This rank's part of the model, with weights still to be loaded.

    ``keys``: what is recomputed; models that are never differentiated need none.
    """
    check_layout(arch, layout)
    with cpu.quietly():
        model = _construct(arch, layout, dtype, max_seq_len, keys)
    if arch.inv_freq is not None:
        model.rotary_pos_emb.inv_freq = torch.tensor(arch.inv_freq, device=cpu.device())
    if dtype == torch.bfloat16:
        model = model.bfloat16()
    placed: PolicyModel = model.to(cpu.device())
    return placed
