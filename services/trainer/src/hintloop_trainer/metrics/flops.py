"""Floating-point operations of a step, and the share of the devices' peak that they are (MFU).

Counted is what the model needs, not what is done: neither padding, nor what is computed anew in the backward pass, nor
the passes of a reference, a teacher or the log-probabilities before the step; a beginning that samples share counts
once. With s positions, t trained tokens, L layers, H hidden size, F width of the feed-forward part, V vocabulary, and
Q, K query and key-value heads of size D::

    forward  = L (2 s H D (2 Q + 2 K) + 6 s H F + 2 s^2 Q D) + 2 t H V
    a step   = 3 x forward   (one for the forward pass, two for the backward; 2 x where the weights are frozen)

With experts, F is the width of those that a token goes through together; the router's share is left out. A
multiplication and an addition are two. Causal attention sees half of the s^2 pairs, which is what 2 s^2 counts
(scores and values: 4 for all pairs). It is the count of PaLM (arXiv 2204.02311, appendix B) with that half, and with
the head on trained tokens alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hintloop_trainer.megatron.model import Architecture

#: Dense bfloat16 peaks by the makers' data sheets, 10^12 FLOPs a second; the first name among the device's words.
PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "GH200": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "A40": 150.0,
    "A6000": 155.0,
    "4090": 165.0,
}


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Peak of the named device under ``dtype``; ``None`` where it is not known (any but bfloat16 on a known GPU)."""
    if dtype != "bfloat16":
        return None
    return next((peak for name, peak in PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", device_name)), None)


def forward_flops(arch: Architecture, num_positions: int, num_trained: int) -> float:
    """Of one sequence, forward, with the head on ``num_trained`` rows."""
    width = arch.num_heads * arch.head_dim
    attention = 2.0 * arch.hidden_size * arch.head_dim * (2 * arch.num_heads + 2 * arch.num_kv_groups)
    ffn = arch.ffn_size if arch.mixture is None else arch.mixture.per_token * arch.mixture.ffn_size
    layer = num_positions * (attention + 6.0 * arch.hidden_size * ffn) + 2.0 * num_positions**2 * width
    return arch.num_layers * layer + 2.0 * num_trained * arch.hidden_size * arch.vocab_size


def step_flops(arch: Architecture, lengths: Iterable[int], num_trained: int, *, frozen: bool = False) -> float:
    """Forward and backward over sequences of so many positions, with ``num_trained`` tokens trained in all of them."""
    passes = 2.0 if frozen else 3.0
    return passes * (sum(forward_flops(arch, length, 0) for length in lengths) + forward_flops(arch, 0, num_trained))
