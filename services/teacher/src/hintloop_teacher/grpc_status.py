"""What a failure is called over gRPC. One place, so that callers can tell "ask again" from "ask otherwise"."""

from __future__ import annotations

import grpc
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop_teacher.errors import (
    FieldError,
    MisalignedError,
    MissingError,
    ProbeError,
    RefusedError,
    TooLongError,
    UnsupportedError,
    WrongIdsError,
)

_CODES: tuple[tuple[tuple[type[HintloopError], ...], grpc.StatusCode], ...] = (
    ((FieldError, WrongIdsError), grpc.StatusCode.INVALID_ARGUMENT),
    # Fields are checked before the engine is asked: what is missing or shifted now is the engine's doing.
    ((MissingError, MisalignedError), grpc.StatusCode.DATA_LOSS),
    ((TooLongError,), grpc.StatusCode.OUT_OF_RANGE),
    ((UnsupportedError, RefusedError, ProbeError), grpc.StatusCode.FAILED_PRECONDITION),
    ((DependencyError,), grpc.StatusCode.UNAVAILABLE),
)


def code_of(error: HintloopError) -> grpc.StatusCode:
    """The status code of a failure; ``INTERNAL`` for one that has no place here."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), grpc.StatusCode.INTERNAL)
