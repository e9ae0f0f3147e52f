"""Named moments of a run: whoever starts a trainer may be told when it gets there. Tests end it at each of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """A moment between two things that could come apart."""

    BEFORE_STEP = "before-step"
    AFTER_STEP = "after-step"
    """The weights are new; nothing of it is noted anywhere."""
    EXPORTED = "exported"
    """The new weights are in the weights directory; no engine knows of them."""
    PUBLISHED = "published"
    WRITING = "writing"
    """A checkpoint's files are being written."""
    BEFORE_RENAME = "before-rename"
    """They are whole and synced, under another name."""
    AFTER_RENAME = "after-rename"
    BEFORE_ACKNOWLEDGE = "before-acknowledge"
    AFTER_ACKNOWLEDGE = "after-acknowledge"
    RESTORED = "restored"
    """The weights are the last released ones again; samples of those given up are still pending."""

    ROLLED_BACK = "rolled-back"
    """The learner is at an earlier version, and so are the checkpoints; no engine knows of it."""


Reached = Callable[[Point], None]


def pass_by(point: Point) -> None:
    """Do nothing."""
