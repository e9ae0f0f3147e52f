"""All faults."""

from __future__ import annotations

from . import configuration, judgements, publishing, teaching, traffic, training
from .fault import Fault

FAULTS: list[Fault] = [
    *configuration.FAULTS,
    *judgements.FAULTS,
    *teaching.FAULTS,
    *traffic.FAULTS,
    *training.FAULTS,
    *publishing.FAULTS,
]
