"""Errors of the trainer, named by boundary."""

from __future__ import annotations

from hintloop_contract.errors import ConfigError, HintloopError


class ModelError(ConfigError):
    """The student's model cannot be trained as it is; the message names the property and the way out."""


class NoRoomError(ConfigError):
    """There is less memory than the configuration takes; the message names what to turn down."""


class LossError(ConfigError):
    """The custom loss cannot be used; the message names what was tried and what is expected."""


class SampleError(HintloopError):
    """A sample's arrays contradict one another; the sample is dropped, the run goes on."""


class TrainingError(HintloopError):
    """A step cannot be made; nothing was changed."""


class WeightsError(HintloopError):
    """The weights give scores that are no numbers; they are neither saved nor released."""


class BackgroundError(HintloopError):
    """Work in the background ended that should not have; training cannot go on without it."""


class ScoringRefusedError(HintloopError):
    """The teacher's gRPC service cannot do what is asked of it; asking again would not help.

    ``at``: which of the questions are refused, where it is not all of them.
    """

    def __init__(self, message: str, at: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.at = at


class RequestRefusedError(HintloopError):
    """An operator's request cannot be carried out; nothing was changed."""


class StopRequestedError(Exception):
    """The process was asked to end while it waited for something: the way out, and no failure."""


class CheckpointError(HintloopError):
    """A checkpoint cannot be written or read."""


class PublishError(HintloopError):
    """An engine did not take the weights, or does not answer with them."""

    def __init__(self, engine: str, step: str, detail: str) -> None:
        """Name the ``engine`` address, the ``step`` of the publish sequence, and what was seen."""
        super().__init__(f"{engine}: {step} failed: {detail}")
        self.engine = engine
        self.step = step
        self.detail = detail


class EngineAwayError(PublishError):
    """The engine does not answer at all: it serves nobody, and is brought up to date when it is back."""
