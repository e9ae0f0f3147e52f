"""Reload a vLLM worker's weights from a Hugging Face directory, tied output heads included.

vLLM's own `reload_weights` leaves a tied output head as it was on CPU: the head shares its parameter
with the embedding, so no tensor of the checkpoint belongs to it, and the packed copy that the CPU
kernels multiply with is never made anew.  This module repacks it.  It imports nothing of vLLM: the
methods it needs are those of the worker class that vLLM mixes it into.
"""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

TensorShapes = dict[str, tuple[int, ...]]


class CheckpointMismatchError(Exception):
    """The directory does not hold the tensors of the model that is being served."""


def read_shapes(directory: Path) -> TensorShapes:
    """Names and shapes of all tensors in the safetensors files of `directory`; reads headers only."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointMismatchError(f"weights_path={str(directory)!r} holds no *.safetensors file")
    shapes: TensorShapes = {}
    for file in files:
        with file.open("rb") as stream:
            (header_bytes,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(header_bytes))
        shapes.update({name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"})
    return shapes


def check_same_tensors(served: TensorShapes, offered: TensorShapes, tied: bool) -> None:
    """Raise `CheckpointMismatchError` naming the first difference.

    vLLM only warns about tensors that a checkpoint lacks and would go on with the old ones.
    """
    if tied:
        # A tied checkpoint may or may not repeat the embedding under the head's name.
        served = {name: shape for name, shape in served.items() if name != "lm_head.weight"}
        offered = {name: shape for name, shape in offered.items() if name != "lm_head.weight"}
    missing = sorted(served.keys() - offered.keys())
    if missing:
        raise CheckpointMismatchError(f"{len(missing)} tensors are missing, the first is {missing[0]!r}")
    unknown = sorted(offered.keys() - served.keys())
    if unknown:
        raise CheckpointMismatchError(f"{len(unknown)} tensors are unknown, the first is {unknown[0]!r}")
    for name in sorted(served):
        if served[name] != offered[name]:
            raise CheckpointMismatchError(f"{name!r} has shape {offered[name]}, the model has {served[name]}")


def is_tied(model_config: Any) -> bool:
    """Whether the output head shares the embedding's parameter."""
    return bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))


def repack_head(model: Any) -> None:
    """Make the kernels' copy of a tied head from the embedding as it is now."""
    head = getattr(model, "lm_head", None)
    if head is None:
        return
    # LoRA wraps the head; the packed copy belongs to the layer inside.
    layer = getattr(head, "base_layer", head)
    layer.quant_method.process_weights_after_loading(layer)


class ReloadExtension:
    """Mixed into vLLM's worker; its methods are reached through `POST /collective_rpc`."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Any

    def hintloop_reload(self, weights_path: str) -> dict[str, Any]:
        """Load `weights_path` in place.

        Returns `{success, message, weights_path, num_tensors, tied, seconds}`.  A directory that does not
        fit is answered with `success: false` before any weight is touched.  Caches that hold states of the
        old weights are the caller's: `POST /reset_prefix_cache` follows.
        """
        started = time.perf_counter()
        tied = is_tied(self.vllm_config.model_config)
        try:
            offered = read_shapes(Path(weights_path))
            check_same_tensors(self._served_shapes(), offered, tied)
        except (CheckpointMismatchError, OSError, ValueError, struct.error) as error:
            return {"success": False, "message": str(error), "weights_path": weights_path}
        self.reload_weights(weights_path=weights_path)
        if tied:
            repack_head(self.model_runner.get_model())
        return {
            "success": True,
            "message": "",
            "weights_path": weights_path,
            "num_tensors": len(offered),
            "tied": tied,
            "seconds": round(time.perf_counter() - started, 4),
        }

    def _served_shapes(self) -> TensorShapes:
        """Tensors of the directory that the engine was started with.

        Remembered at the first call, because a reload points the configuration at the new directory.
        """
        shapes: TensorShapes | None = getattr(self, "_hintloop_shapes", None)
        if shapes is None:
            shapes = read_shapes(Path(self.vllm_config.model_config.model))
            self._hintloop_shapes = shapes
        return shapes
