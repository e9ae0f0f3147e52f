"""Keys of `[training]` that say how the model is spread over processes and memory. `TrainingSection` inherits them."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from hintloop_contract.config.section import Positive, Section


class LayoutKeys(Section):
    """How one model is divided over ranks and what it trades for memory; the rest of the ranks is data parallel."""

    tensor_model_parallel_size: Positive = 1
    """Tensor parallel ranks."""
    pipeline_model_parallel_size: Positive = 1
    """Pipeline parallel stages."""
    context_parallel_size: Positive = 1
    """Ranks that share a sequence's positions; with Transformer Engine on GPUs, else refused."""
    expert_model_parallel_size: Positive = 1
    """Ranks that share a mixture's experts; other parts of the model are data parallel over them."""
    sequence_parallel: bool = False
    """Divide norms and residuals over tensor parallel ranks; refused where there is one."""
    use_distributed_optimizer: bool = False
    """Divide AdamW's moments and float32 weights over data-parallel ranks: less memory, the same steps."""
    overlap_grad_reduce: bool = False
    """Sum gradients over data-parallel ranks while the backward pass still runs."""
    recompute_granularity: Literal["selective", "full"] | None = None
    """Compute anew in the backward pass, instead of keeping: attention (`selective`) or whole layers (`full`)."""
    recompute_method: Literal["uniform", "block"] | None = None
    """`full` only: keep one input for every `recompute_num_layers` layers, or recompute that many of each stage."""
    recompute_num_layers: Positive | None = None
    """`full` only: see `recompute_method`."""

    @model_validator(mode="after")
    def _sequence_parallel(self) -> LayoutKeys:
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError(
                "training.sequence_parallel divides work over tensor parallel ranks, and there is one; set "
                "training.tensor_model_parallel_size above 1, or sequence_parallel = false"
            )
        return self

    @model_validator(mode="after")
    def _recomputation(self) -> LayoutKeys:
        full = self.recompute_granularity == "full"
        for name in ("recompute_method", "recompute_num_layers"):
            value = getattr(self, name)
            if full and value is None:
                raise ValueError(
                    f"training.recompute_granularity full needs training.{name}; set recompute_method = 'uniform' "
                    "and recompute_num_layers = 1"
                )
            if not full and value is not None:
                raise ValueError(
                    f"training.{name} {value!r} acts only with training.recompute_granularity full, which is "
                    f"{self.recompute_granularity!r}; set full, or leave {name} out"
                )
        return self
