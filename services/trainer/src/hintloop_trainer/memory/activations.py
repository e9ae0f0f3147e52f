"""What one micro-batch keeps from its forward pass to its backward pass, and what passes by meanwhile.

Counted are the tensors that autograd saves, each once (:func:`torch.autograd.graph.saved_tensors_hooks` finds the same,
and the tests compare). With H hidden size, Q and G query and key-value heads of size D, F the width of the feed-forward
part, b bytes of the dtype, per token and layer, in elements of the dtype::

    two norms      each input and output: 4 H; under bfloat16 input and normalised in float32, and output: 10 H
    attention      q, k, v and what it gives: (4 Q + 3 G) D in packed rows, (3 Q + 3 G) D in padded ones; one float32
                   for each head
    norms of q, k  (Qwen3) Q D; under bfloat16 4 (Q + G) D
    feed-forward   gate and up, and their product: 3 F; with experts 6 F + H for each of a token's
    rotary         4 D for every position of a row

Transformer Engine fuses norms into the layers behind them and keeps less; its count is from its documentation and not
measured: 4 H + (2 Q + 2 G) D + 3 F. Divided by tensor-parallel ranks are all terms but H's, which are with
`sequence_parallel` only. With recomputation (`full`) one input H is kept for every `recompute_num_layers` layers
(`uniform`), and one such group is computed anew at a time.
"""

from __future__ import annotations

from hintloop_trainer.memory.plan import Plan


def layer_bytes(plan: Plan) -> float:
    """Kept by one layer of one micro-batch on one rank."""
    tokens = plan.positions / plan.cp
    elements = tokens * (_hidden_elements(plan) / _sequence_ranks(plan) + _inner_elements(plan) / plan.tp)
    statistics = 4.0 * tokens * plan.arch.num_heads / plan.tp
    row = plan.positions if plan.config.training.packing else plan.config.model.max_seq_len
    rotary = 0.0 if plan.fused else 4.0 * plan.arch.head_dim * row / plan.cp
    return plan.dtype_bytes * (elements + rotary) + statistics


def _sequence_ranks(plan: Plan) -> int:
    return plan.tp if plan.config.training.sequence_parallel else 1


def _hidden_elements(plan: Plan) -> float:
    per_norm = 2.0 if plan.fused or plan.dtype_bytes == 4 else 5.0
    return 2 * per_norm * plan.arch.hidden_size


def _inner_elements(plan: Plan) -> float:
    arch = plan.arch
    queries, groups = arch.num_heads * arch.head_dim, arch.num_kv_groups * arch.head_dim
    attention = 2.0 * (queries + groups)
    if not plan.fused:
        attention = (4.0 if plan.config.training.packing else 3.0) * queries + 3.0 * groups
    if arch.family.startswith("qwen3"):
        attention += queries if plan.dtype_bytes == 4 else 4.0 * (queries + groups)
    if arch.mixture is None:
        return attention + 3.0 * arch.ffn_size
    each = (4.0 if plan.fused else 6.0) * arch.mixture.ffn_size + arch.hidden_size
    return attention + arch.mixture.per_token * each


def kept_bytes(plan: Plan, stage: int) -> float:
    """Kept by all layers of a stage, for all micro-batches that are in flight there."""
    in_flight = min(plan.pp - stage, plan.num_micro_batches)
    training, layer = plan.config.training, layer_bytes(plan)
    one_input = plan.dtype_bytes * plan.positions / plan.cp * plan.arch.hidden_size / _sequence_ranks(plan)
    if training.recompute_granularity != "full":
        return in_flight * plan.layers * layer
    group = min(training.recompute_num_layers or 1, plan.layers)
    if training.recompute_method == "block":
        return in_flight * (group * one_input + (plan.layers - group) * layer) + layer
    return in_flight * -(-plan.layers // group) * one_input + group * layer


def passing_bytes(plan: Plan) -> float:
    """Gradients of one layer's tensors, while its backward pass runs: of the feed-forward part and of attention."""
    arch, tokens = plan.arch, plan.positions / plan.cp
    width = arch.ffn_size if arch.mixture is None else arch.mixture.per_token * arch.mixture.ffn_size
    heads = (arch.num_heads + 2 * arch.num_kv_groups) * arch.head_dim
    return plan.dtype_bytes * tokens * (2.0 * arch.hidden_size + max(5.0 * width, 3.0 * heads) / plan.tp)
