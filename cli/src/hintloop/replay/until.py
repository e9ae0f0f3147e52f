"""What a user chooses of a replay. Imports nothing: the command line reads it at every call."""

from __future__ import annotations

import enum


class Until(enum.StrEnum):
    """The last service that works on a turn."""

    JUDGE = "judge"
    TEACHER = "teacher"
    TRAINER = "trainer"


class Source(enum.StrEnum):
    """Where recorded turns are taken from."""

    AUTO = "auto"
    CONSOLE = "console"
    REDIS = "redis"
    DEAD = "dead"
