"""Weights as a Hugging Face directory: written aside, synced to disk, renamed into place.

Owns files, the digest and their durability; names and layouts are :mod:`weights`' business.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file

from hintloop_trainer import durable
from hintloop_trainer.errors import CheckpointError
from hintloop_trainer.megatron import adapter
from hintloop_trainer.megatron.model import Architecture
from hintloop_trainer.megatron.parallel import Layout

#: Files beside the weights that an engine reads.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def _digest(name: str, tensor: torch.Tensor) -> str:
    header = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
    digest = hashlib.sha256(header)
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _leave(name: str, tensor: torch.Tensor) -> None:
    """Another rank writes this tensor."""


def write_weights(
    model: torch.nn.Module,
    arch: Architecture,
    layout: Layout,
    *,
    base: Path,
    tokenizer: Path,
    target: Path,
) -> str:
    """Export the model, adapters merged, to ``target``, which must not exist. Collective over all ranks.

    ``base`` gives the configuration, ``tokenizer`` the tokenizer's files.

    Returns:
        SHA-256 (hex) over names, dtypes, shapes and values: the same for the same weights under any layout.

    Raises:
        CheckpointError: ``target`` exists, or cannot be written; on all ranks, and nothing is left of it.
    """
    with _nothing_left(target, layout):
        aside = _begin(target, layout)
        tensors: dict[str, torch.Tensor] = {}
        writes = layout.tp_rank == 0 and layout.dp_rank == 0 and layout.cp_rank == 0
        # All ranks put tensors together; were they all to keep them, a host would hold as many models as it has ranks.
        adapter.export_tensors(model, arch, layout, tensors.__setitem__ if writes else _leave)
        durable.together(partial(_save, tensors, aside / _file_name(layout)) if writes else None)
        digests = {name: _digest(name, tensor) for name, tensor in tensors.items()}
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        everyone: list[tuple[int, dict[str, str], dict[str, int]]] = [(0, {}, {})] * layout.world_size
        dist.all_gather_object(everyone, (layout.pp_rank, digests, sizes))

        def finish() -> None:
            _write_companions(aside, base, tokenizer, next(iter(tensors.values())).dtype)
            if layout.pp_size > 1:
                _write_index(aside, layout.pp_size, everyone)
            durable.put_in_place(aside, target)

        durable.together(finish if layout.rank == 0 else None)
    return _joint_digest({name: found for _, stage, _ in everyone for name, found in stage.items()})


def _begin(target: Path, layout: Layout) -> Path:
    """An empty directory beside ``target``, to be renamed to it. Collective over all ranks."""
    aside = aside_of(target)

    def make() -> None:
        if target.exists():
            raise FileExistsError(f"{target} exists; a weight version is written once")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)

    durable.together(make if layout.rank == 0 else None)
    return aside


def aside_of(target: Path) -> Path:
    """Where what is to stand at ``target`` is written first."""
    return target.with_name(f".{target.name}.partial")


@contextmanager
def _nothing_left(target: Path, layout: Layout) -> Iterator[None]:
    """Delete what was written aside when it is not put in place: on a full volume it would be in the way."""
    try:
        yield
    except CheckpointError:
        if layout.rank == 0:
            shutil.rmtree(aside_of(target), ignore_errors=True)
        raise


def _save(tensors: dict[str, torch.Tensor], file: Path) -> None:
    try:
        save_file(tensors, str(file), metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{file}: {error}") from error
    file.chmod(0o644)  # engines may run as another user


def write_adapter(model: torch.nn.Module, layout: Layout, config: dict[str, Any], *, target: Path) -> str:
    """Write the model's adapters as PEFT reads them to ``target``, which must not exist. Collective over all ranks.

    ``config`` is what stands in ``adapter_config.json``.

    Returns:
        SHA-256 (hex) as of :func:`write_weights`, on the first rank; elsewhere an empty string.

    Raises:
        CheckpointError: ``target`` exists, or cannot be written; on all ranks, and nothing is left of it.
    """
    with _nothing_left(target, layout):
        aside = _begin(target, layout)
        mine = adapter.peft_tensors(adapter.gather(model, layout))
        if layout.tp_rank or layout.dp_rank or layout.cp_rank:
            mine = {}
        stages: list[dict[str, torch.Tensor]] = [mine] * layout.world_size
        if layout.pp_size > 1:
            dist.gather_object(mine, stages if layout.rank == 0 else None)
        tensors = {name: tensor for stage in stages for name, tensor in stage.items()} if layout.rank == 0 else {}

        def finish() -> None:
            _save(tensors, aside / "adapter_model.safetensors")
            (aside / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
            durable.put_in_place(aside, target)

        durable.together(finish if layout.rank == 0 else None)
    return _joint_digest({name: _digest(name, tensor) for name, tensor in tensors.items()}) if layout.rank == 0 else ""


def _joint_digest(digests: dict[str, str]) -> str:
    whole = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        whole.update(f"{name} {digest}\n".encode())
    return whole.hexdigest()


def _file_name(layout: Layout) -> str:
    return _stage_file(layout.pp_rank, layout.pp_size)


def _stage_file(stage: int, num_stages: int) -> str:
    if num_stages == 1:
        return "model.safetensors"
    return f"model-{stage + 1:05d}-of-{num_stages:05d}.safetensors"


def _write_index(aside: Path, num_stages: int, everyone: list[tuple[int, dict[str, str], dict[str, int]]]) -> None:
    stages = {name: stage for stage, digests, _ in everyone for name in digests}
    sizes = {name: size for _, digests, found in everyone for name, size in found.items() if name in digests}
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": {name: _stage_file(stage, num_stages) for name, stage in sorted(stages.items())},
    }
    (aside / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _write_companions(aside: Path, base: Path, tokenizer: Path, dtype: torch.dtype) -> None:
    config = json.loads((base / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for source in (tokenizer, base):
        for name in COMPANIONS:
            if (source / name).is_file() and not (aside / name).exists():
                shutil.copyfile(source / name, aside / name)
