"""Errors of the teacher, named by boundary. An engine that is away is the contract's ``DependencyError``."""

from __future__ import annotations

from enum import StrEnum

from hintloop_contract.errors import HintloopError
from hintloop_contract.messages import DropReason


class RecordError(HintloopError):
    """A turn's record is freed or does not hold what it must."""


class RefusedError(HintloopError):
    """An engine answered a request with 4xx: the request is at fault, not the engine."""

    def __init__(self, url: str, status: int, text: str) -> None:
        super().__init__(f"{url} answered {status}: {text}")
        self.status = status
        self.text = text


class ProbeReason(StrEnum):
    """What a PRM engine that cannot teach fails at; shown by ``GET /v1/prm`` for programs to read."""

    NO_SCORES = "no_scores"  # it gives no log-probabilities of given tokens
    SHIFTED = "shifted"  # they belong to other tokens than those asked
    VOCABULARY = "vocabulary"  # its vocabulary or special ids differ from the student's, or cannot be seen
    TOP_K = "top_k"  # it gives fewer candidates than the method needs, or wrong ones
    MODEL = "model"  # the teacher's model is not served there
    ADDRESS = "address"  # no inference engine answers at the address


class ProbeError(HintloopError):
    """The PRM engine cannot serve as teacher; the message says why and what to change."""

    def __init__(self, message: str, reason: ProbeReason = ProbeReason.NO_SCORES) -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedError(HintloopError):
    """The PRM engine cannot do what is asked of it, by its kind or its settings; the message says what to change."""


class FieldError(HintloopError):
    """A gRPC request's field is wrong; the message begins with its name."""


class TeachError(HintloopError):
    """A turn cannot be taught; ``reason`` is what it drops as."""

    reason: DropReason


class RenderMismatchError(TeachError):
    """The policy engine does not render the captured messages to the captured ids."""

    reason = DropReason.RENDER_MISMATCH


class NoHintPlaceError(TeachError):
    """There is no unambiguous place for the hint."""

    reason = DropReason.NO_HINT_PLACE


class UnsafeHintError(TeachError):
    """The hint holds a control token, so that it could end the user's turn."""

    reason = DropReason.NO_HINT


class MissingError(TeachError):
    """A teacher log-probability is null, non-finite, positive or a placeholder."""

    reason = DropReason.TEACHER_MISSING


class MisalignedError(TeachError):
    """The tokens scored are not the response's, or lie outside the shared vocabulary."""

    reason = DropReason.TEACHER_MISALIGNED


class WrongIdsError(MisalignedError):
    """The ids that were to be scored are wrong by themselves: none, outside the vocabulary, or not one row a token."""


class TooLongError(TeachError):
    """Longer than ``model.max_seq_len`` or than the PRM engine's context."""

    reason = DropReason.TOO_LONG
