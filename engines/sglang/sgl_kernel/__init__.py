"""Stand-in for SGLang's kernel package, which has no release for CPU.

SGLang imports its kernels by name all over, and on CPU with torch-native attention calls none of them.
Here every name exists and is a `MissingKernel`: importing and passing it around is free, a call raises
with the kernel's name.  Nothing is computed here, so nothing can be computed wrongly.

It also makes requests for pinned memory ask for ordinary memory, because pinning needs an accelerator.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from typing import Any

import torch

# SGLang refuses kernel packages older than this.
__version__ = "0.4.10"
__path__: list[str] = []

PINNABLE_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "full",
    "ones",
    "tensor",
    "zeros",
    "zeros_like",
)


class MissingKernel:
    """A kernel, or a namespace of kernels, that does not exist on this machine."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> MissingKernel:
        return _missing(self.__dict__.get("_name", __name__), attribute)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} has no CPU implementation; SGLang ran into a kernel it needs")

    def __repr__(self) -> str:
        return f"<missing kernel {self._name}>"


def _missing(namespace: str, attribute: str) -> MissingKernel:
    # Dunder lookups are questions of the interpreter and of libraries: the honest answer is no.
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return MissingKernel(f"{namespace}.{attribute}")


__getattr__ = functools.partial(_missing, __name__)


class MissingModules(MetaPathFinder, Loader):
    """Finds every `sgl_kernel.<anything>` as a module whose names are missing kernels."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = functools.partial(_missing, spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module's names are answered on demand."""


def _unpinned(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return factory(*args, **kwargs)

    return make


def use_ordinary_memory_for_pinned() -> None:
    """Let torch's factories and `Tensor.pin_memory` work without an accelerator."""
    for name in PINNABLE_FACTORIES:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


sys.meta_path.append(MissingModules())
if not torch.cuda.is_available():
    use_ordinary_memory_for_pinned()
