"""Whether an engine serves a release: its scores of the probe against the trainer's.

Two questions: are they near (within a tolerance by dtype), and are they nearer to these weights than to earlier
ones? Under bfloat16 a step moves the scores far less than the tolerance, so nearness alone would not notice an
engine that kept its old weights. The second question is asked about the latest earlier release whose scores
differ from the new ones by clearly more than engine and trainer differ by themselves; small steps add up until
there is one. By the triangle inequality an engine that has the new weights cannot fail it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineControl
from hintloop_trainer.publish.release import Release

#: How many times the engine's own difference two releases must lie apart to be told from one another.
CLEARLY = 4.0
#: The engine's own difference counts as at least this share of the tolerance.
LEAST_NOISE = 0.01
#: Earlier releases remembered.
MEMORY = 1000


def distance(one: Sequence[float], two: Sequence[float]) -> float:
    """Mean difference per token, nats; not a number when one of them is not.

    Raises:
        ValueError: the lengths differ.
    """
    return math.fsum(abs(a - b) for a, b in zip(one, two, strict=True)) / len(one)


class Verifier:
    """Compares engines with releases, and learns how far an engine is from the trainer under equal weights."""

    def __init__(self, tolerance: float) -> None:
        """``tolerance`` bounds the mean difference per token, nats."""
        self._tolerance = tolerance
        self._noise: dict[str, float] = {}
        self._earlier: deque[Release] = deque(maxlen=MEMORY)

    def remember(self, release: Release) -> None:
        """Engines may be found to serve ``release`` when they should serve a later one."""
        if not self._earlier or self._earlier[-1].version != release.version:
            self._earlier.append(release)

    async def verify(self, control: EngineControl, release: Release) -> float:
        """The mean difference per token to the trainer's scores of the probe.

        Raises:
            EngineAwayError: the engine does not answer.
            PublishError: the scores are too far away, or nearer to those of an earlier release.
        """
        scores = await control.score(release.probe_ids, release.adapter)
        difference = distance(scores, release.probe_scores)
        if not difference <= self._tolerance:
            raise PublishError(
                control.url,
                "probe",
                f"mean difference {difference:.6f} nats to the trainer's scores, tolerance {self._tolerance}",
            )
        # The least difference ever seen: one that grows with every release is what is to be noticed.
        noise = min(difference, self._noise.get(control.url, difference))
        earlier = self._distinct(release, max(noise, LEAST_NOISE * self._tolerance))
        if earlier is not None and not difference < distance(scores, earlier.probe_scores):
            raise PublishError(
                control.url,
                "probe",
                f"the scores are nearer to version {earlier.version} ({distance(scores, earlier.probe_scores):.6f} "
                f"nats) than to version {release.version} ({difference:.6f}): the engine kept old weights",
            )
        self._noise[control.url] = noise
        return difference

    def _distinct(self, release: Release, noise: float) -> Release | None:
        """The latest earlier release on the same probe that can be told from ``release``."""
        for earlier in reversed(self._earlier):
            if earlier.probe_ids != release.probe_ids:
                continue
            if distance(earlier.probe_scores, release.probe_scores) > CLEARLY * noise:
                return earlier
        return None
