"""Root-mean-square norm in fewer passes over memory than torch's on a CPU, keeping a third of it for the gradient.

Legend: H = the last axis.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig


class RootMeanSquareNorm(torch.nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, as megatron builds any norm.

    Where positions are divided over tensor-parallel ranks, the weight's mark has megatron sum its gradient over them.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        """A norm over ``hidden_size`` values; the other arguments say what this one always does."""
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # megatron's mark

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., H]`` of ``x``'s dtype; sums in float32."""
        if x.dtype != torch.float32:
            return super().forward(x)
        found: torch.Tensor = _Norm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]  # torch
        return found


class _Norm(torch.autograd.Function):
    """Keeps its input and one number a row; torch's operations would keep two results of the input's size beside."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normal: torch.Tensor = x * scale
        return normal.mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normal = x * scale
        weight_grad = (grad * normal).flatten(0, -2).sum(0)
        inner = grad * weight
        share = torch.linalg.vecdot(inner, normal).unsqueeze_(-1).div_(-x.shape[-1])
        return inner.addcmul_(normal, share).mul_(scale), weight_grad, None
