"""Section of where the trainer's figures of each step go, beside the file that is always written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from hintloop_contract.config.section import PositiveFloat, Section


class MetricsSection(Section):
    """Where the trainer's metrics go; `metrics.jsonl` beside `training.checkpoint_dir` is written in any case."""

    host: str = "127.0.0.1"
    """Where the trainer's `/metrics` (Prometheus) and `/health` listen."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Their port; 0: not served."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    tensorboard_dir: Path | None = None
    """Where they are written; `tensorboard` beside `training.checkpoint_dir` when not given."""
    wandb_project: str = ""
    """Project at Weights & Biases that metrics are sent to; empty: none. Needs the package `wandb`, which takes its key
    and mode from the environment (`WANDB_API_KEY`, `WANDB_MODE`)."""
    peak_tflops: PositiveFloat | None = None
    """Peak of one device in 10^12 FLOPs a second in `model.dtype`, dense, for the utilisation (MFU); by the device's
    name when not given."""
