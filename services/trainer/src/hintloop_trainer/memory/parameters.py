"""How many weights one rank holds. With H hidden size, Q and G query and key-value heads of size D, F the width of the
feed-forward part, V vocabulary: a layer has ``H D (2 Q + 2 G) + 3 H F`` and its norms, embedding and head V H each.
"""

from __future__ import annotations

from dataclasses import dataclass

from hintloop_trainer.megatron.lora import sizes
from hintloop_trainer.memory.plan import Plan


@dataclass(frozen=True, slots=True)
class Parameters:
    """Weights of one rank."""

    dense: int
    """All but experts and adapters."""
    experts: int
    adapters: int
    largest: int
    """Of one tensor."""

    @property
    def total(self) -> int:
        """All weights."""
        return self.dense + self.experts + self.adapters


def count(plan: Plan, stage: int) -> Parameters:
    """Weights of a rank of pipeline stage ``stage``."""
    arch = plan.arch
    vocabulary = arch.padded_vocab(plan.tp) // plan.tp * arch.hidden_size
    last = stage == plan.pp - 1
    dense = plan.layers * _dense_layer(plan)
    tables = int(stage == 0) + int(last and (not arch.tied or plan.pp > 1))
    dense += tables * vocabulary + (arch.hidden_size if last else 0)
    mixture = arch.mixture
    experts = 0
    if mixture is not None:
        experts = plan.layers * mixture.num_experts // plan.ep * 3 * arch.hidden_size * mixture.ffn_size // plan.tp
    widest = 2 * (mixture.ffn_size if mixture else arch.ffn_size)
    widest = max(widest, (arch.num_heads + 2 * arch.num_kv_groups) * arch.head_dim) * arch.hidden_size // plan.tp
    return Parameters(dense, experts, _adapters(plan), max(vocabulary if tables else 0, widest))


def _dense_layer(plan: Plan) -> int:
    """Attention, norms, and the feed-forward part where there are no experts."""
    arch, hidden = plan.arch, plan.arch.hidden_size
    qkv = (arch.num_heads + 2 * arch.num_kv_groups) * arch.head_dim // plan.tp
    found = hidden * qkv + arch.num_heads * arch.head_dim // plan.tp * hidden + 2 * hidden
    if arch.family == "qwen2":
        found += qkv
    if arch.family.startswith("qwen3"):
        found += 2 * arch.head_dim
    if arch.mixture is not None:
        return found + arch.mixture.num_experts * hidden
    return found + 3 * hidden * arch.ffn_size // plan.tp


def _adapters(plan: Plan) -> int:
    section = plan.config.lora
    if not section.enabled:
        return 0
    found = 0
    for name, (outputs, inputs) in sizes(plan.arch).items():
        module = name.split(".")[-1]
        if module not in section.modules:
            continue
        by_rows = module in ("o_proj", "down_proj")
        cut, whole = (inputs, outputs) if by_rows else (outputs, inputs)
        found += section.rank * (whole + cut // plan.tp)
    return plan.layers * found
