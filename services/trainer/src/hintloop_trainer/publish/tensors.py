"""The tensors of an exported version, in portions, in the order in which engines load them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

#: Bytes of one portion: an engine holds so much beside its weights.
PORTION_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Portion:
    """Some tensors under their Hugging Face names."""

    names: list[str]
    tensors: list[torch.Tensor]
    last: bool

    @property
    def dtypes(self) -> list[str]:
        """Names of the dtypes, as torch has them."""
        return [str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors]

    @property
    def shapes(self) -> list[list[int]]:
        """Sizes of the tensors."""
        return [list(tensor.shape) for tensor in self.tensors]


def _natural(name: str) -> list[tuple[int, str]]:
    """Layer 10 after layer 9: an engine that finishes layer by layer then holds one at a time."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def portions(directory: Path, portion_bytes: int) -> Iterator[Portion]:
    """Read every tensor of ``directory``'s safetensors files, on the CPU, ``portion_bytes`` or one tensor at once.

    Raises:
        OSError: there is no such file.
    """
    where: dict[str, Any] = {}
    for file in sorted(directory.glob("*.safetensors")):
        handle: Any = safe_open(str(file), framework="pt")
        where.update(dict.fromkeys(handle.keys(), handle))
    if not where:
        raise FileNotFoundError(f"{directory} holds no *.safetensors file")
    names = sorted(where, key=_natural)
    taken: list[str] = []
    tensors: list[torch.Tensor] = []
    size = 0
    for number, name in enumerate(names):
        tensor = where[name].get_tensor(name)
        if taken and size + tensor.nbytes > portion_bytes:
            yield Portion(taken, tensors, last=False)
            taken, tensors, size = [], [], 0
        taken.append(name)
        tensors.append(tensor.contiguous())
        size += tensor.nbytes
        if number == len(names) - 1:
            yield Portion(taken, tensors, last=True)
