"""Everything that megatron-core needs to run without a CUDA device. With one, nothing here does anything.

megatron-core asks for CUDA by name in a few dozen places, though nothing it computes depends on it. While
the redirection is active, those requests are answered with the CPU. It must be installed before megatron is
imported, and acts in the thread that installed it: all of torch's work stays in that thread.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


def has_cuda() -> bool:
    """Whether a CUDA device is there."""
    return torch.cuda.is_available()


def device() -> torch.device:
    """Device of parameters and batches."""
    return torch.device("cuda", torch.cuda.current_device()) if has_cuda() else _CPU


def emulates(dtype: torch.dtype) -> bool:
    """Whether this processor has no fast multiplication for ``dtype``: measured, ten times slower or worse."""
    if has_cuda() or dtype != torch.bfloat16:
        return False
    return not torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _names_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, int) and not isinstance(value, bool)


class _Redirect(TorchFunctionMode):
    """Answer requests for a CUDA tensor with a CPU one; leave every other call as it is."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if _names_cuda(keywords.get("device")):
            keywords["device"] = _CPU
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and _names_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        result = func(*args, **keywords)
        if func is torch.Tensor.type and isinstance(result, str):
            # Megatron's optimizers tell parameters apart by the names of CUDA tensor types.
            return result.replace("torch.", "torch.cuda.", 1)
        return result


class _NoStream:
    """Stands for a CUDA stream and for its events: every method does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self

    def __enter__(self) -> _NoStream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


_redirect: _Redirect | None = None


def install() -> None:
    """Redirect CUDA requests of this thread to the CPU; does nothing with CUDA, or when installed already."""
    global _redirect
    if has_cuda() or _redirect is not None:
        return
    # Megatron's fused functions are torch.compile'd; compiling on the CPU takes minutes and gains nothing.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    stream = _NoStream()
    replacements: dict[str, Any] = {
        "current_device": lambda: _CPU,
        "synchronize": lambda *args, **kwargs: None,
        "empty_cache": lambda: None,
        "current_stream": lambda *args, **kwargs: stream,
        "default_stream": lambda *args, **kwargs: stream,
        "stream": lambda *args, **kwargs: stream,
        "Stream": _NoStream,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)
    _redirect = _Redirect()
    _redirect.__enter__()  # type: ignore[no-untyped-call]
    _keep_freed_memory()
    _import_quietly()


def _keep_freed_memory() -> None:
    """Have the C allocator keep large blocks that are freed: a step takes and gives back the same ones.

    By default it returns them to the kernel, which has to clear them again at every use; that took a third of a
    step. glibc alone has the switches; elsewhere nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 64 * 2**20)


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Megatron's warnings about absent GPU libraries and its own deprecations: no one can act on them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(megatron|torch|apex)(\.|$)")
        # The distributed optimizer's weights are views of the model's, and it gives them gradients itself.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield


def _import_quietly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core.dist_checkpointing
        import megatron.core.distributed
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.optimizer
        import megatron.core.pipeline_parallel  # noqa: F401
        import megatron.core.tensor_parallel.random as random
        import megatron.core.transformer.moe.token_dispatcher as token_dispatcher

        random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
        # Of what is moved to the host, sizes are wanted as arrays; what is there already stays a tensor otherwise.
        token_dispatcher.maybe_move_tensor_to_cpu = _on_host


def _on_host(value: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return value.numpy() if as_numpy and isinstance(value, torch.Tensor) else value
