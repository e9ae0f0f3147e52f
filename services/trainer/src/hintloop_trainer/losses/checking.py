"""Runs a loss and holds it to what it promised: what a custom one gets wrong is said, and no step is made of it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from hintloop_trainer.errors import LossError
from hintloop_trainer.losses.inputs import LossInputs, TokenLosses

if TYPE_CHECKING:
    from hintloop_trainer.losses.loading import LoadedLoss

# In the order in which they are written down: what is said of a loss must not depend on a set's.
_NAMES = tuple(field.name for field in fields(LossInputs))


class _Watched(LossInputs):
    """Inputs that remember what was read of them."""

    __slots__ = ("_reads",)

    def __new__(cls, *arguments: Any, **fields: Any) -> _Watched:
        made = object.__new__(cls)
        object.__setattr__(made, "_reads", set())
        return made

    @property
    def reads(self) -> frozenset[str]:
        """Names that were read."""
        return frozenset(object.__getattribute__(self, "_reads"))

    def __getattribute__(self, name: str) -> Any:
        if name in _NAMES:
            object.__getattribute__(self, "_reads").add(name)
        return object.__getattribute__(self, name)


def compute(loss: LoadedLoss, inputs: LossInputs, turn_ids: Sequence[str]) -> tuple[TokenLosses, frozenset[str]]:
    """The losses of ``inputs``, and the names of the inputs that they were computed from.

    ``turn_ids`` name the samples that ``inputs.sample_N`` counts.

    Raises:
        LossError: the loss raised, or gave something else than a float for every token that the student's
            log-probabilities have a gradient of.
    """
    values = {name: getattr(inputs, name) for name in _NAMES}
    watched, written = _Watched(**values), _writes(values)
    try:
        result = loss.compute(watched)
    except Exception as error:
        raise LossError(f"loss {loss.source} {_failure(loss, error)}; no step was made") from error
    changed = [name for name, before in written.items() if values[name]._version != before]
    if changed:
        # What it was is needed for the metrics, and for the next pass over the same samples. Inputs may share memory
        # (tempered_N and old_tempered_N at temperature 1): the one that the loss took is meant.
        name = next((name for name in changed if name in watched.reads), changed[0])
        raise LossError(
            f"loss {loss.source} changes its input {name} in place; work on a copy ({name}.clone()), or take the "
            "function whose name does not end in _"
        )
    _check(loss, inputs, result, turn_ids)
    return result, watched.reads


def _writes(values: dict[str, Any]) -> dict[str, int]:
    """How often each tensor was written to, as torch counts it."""
    return {name: value._version for name, value in values.items() if isinstance(value, torch.Tensor)}


def _failure(loss: LoadedLoss, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == loss.source] or frames
    said = f"raised {type(error).__name__} in line {own[-1].lineno}: {error}".replace(_Watched.__name__, "LossInputs")
    if "NoneType" in said:
        # By far the commonest: an input that no sample has to have.
        said += "; an input that REQUIRES does not ask for may be None"
    return said


def _check(loss: LoadedLoss, inputs: LossInputs, result: Any, turn_ids: Sequence[str]) -> None:
    losses_N, expected_N = getattr(result, "losses_N", None), inputs.logprobs_N
    if not isinstance(result, TokenLosses) or not isinstance(losses_N, torch.Tensor):
        raise LossError(f"loss {loss.source} gave {type(result).__name__}, expected TokenLosses(losses_N=a tensor)")
    if losses_N.shape != expected_N.shape:
        raise LossError(
            f"loss {loss.source} gave losses of shape {tuple(losses_N.shape)}, expected one for each of "
            f"{len(expected_N)} tokens; the trainer takes the mean"
        )
    if losses_N.dtype not in (torch.float32, torch.float64):
        raise LossError(f"loss {loss.source} gave {losses_N.dtype} losses, expected torch.float32; use .float()")
    if losses_N.device != expected_N.device:
        raise LossError(
            f"loss {loss.source} gave losses on {losses_N.device}, expected them on {expected_N.device}; make tensors "
            "with device=inputs.logprobs_N.device"
        )
    if torch.is_grad_enabled() and expected_N.requires_grad and not losses_N.requires_grad:
        raise LossError(
            f"loss {loss.source} gave losses without a gradient; compute them from logprobs_N, tempered_N or "
            "candidates_NK, without .detach(), .item(), .data or torch.no_grad()"
        )
    _check_finite(loss, inputs, losses_N, turn_ids)
    _check_metrics(loss, result)


def _check_finite(loss: LoadedLoss, inputs: LossInputs, losses_N: torch.Tensor, turn_ids: Sequence[str]) -> None:
    """A loss of numbers has to be numbers; weights that give none are no fault of a loss."""
    wrong_N = ~losses_N.detach().isfinite()
    if not loss.custom or not bool(wrong_N.any()) or not bool(inputs.logprobs_N.isfinite().all()):
        return
    first = int(wrong_N.nonzero()[0])
    sample = int(inputs.sample_N[first])
    token = first - int((inputs.sample_N < sample).sum())
    raise LossError(
        f"loss {loss.source} gave {losses_N[first].item()} for {int(wrong_N.sum())} of {len(losses_N)} tokens, first "
        f"for token {token} of turn {turn_ids[sample]}; no step was made. Look for a logarithm, a root or a quotient "
        "at 0, and for inputs that are NaN because REQUIRES does not ask for them"
    )


def _check_metrics(loss: LoadedLoss, result: TokenLosses) -> None:
    if not isinstance(result.metrics, dict):
        raise LossError(
            f"loss {loss.source} gave metrics as {type(result.metrics).__name__}, expected a dict of names to tensors"
        )
    for name, values in result.metrics.items():
        if not isinstance(name, str) or not isinstance(values, torch.Tensor) or values.is_complex():
            found = values.dtype if isinstance(values, torch.Tensor) else type(values).__name__
            raise LossError(f"loss {loss.source} gave the metric {name!r} as {found}, expected a detached tensor")
