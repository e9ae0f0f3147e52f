"""Whether old weights are noticed where a step moves the scores far less than the tolerance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.verification import Verifier, distance

LENGTH = 50
IDS = list(range(LENGTH + 1))


class Engine:
    """Answers with the scores it is given, and rounding of its own."""

    url = "http://engine"

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.scores: list[float] = []
        self.rng = np.random.default_rng(1)

    async def score(self, token_ids: list[int], adapter: str | None = None) -> list[float]:
        return list(np.asarray(self.scores) + self.rng.normal(0, self.noise, LENGTH))


def releases(count: int, step: float, noise: float) -> list[Release]:
    """Scores that drift ``step`` nats a token a version, and the trainer's rounding on them."""
    rng = np.random.default_rng(2)
    true = -rng.uniform(0.5, 4.0, LENGTH)
    direction = rng.choice([-1.0, 1.0], LENGTH)
    found = []
    for version in range(1, count + 1):
        rounded = true + rng.normal(0, noise, LENGTH)
        found.append(Release(version, Path(str(version)), IDS, list(rounded)))
        true = true + step * direction
    return found


async def serve(verifier: Verifier, engine: Engine, release: Release, serving: Release) -> float:
    engine.scores = serving.probe_scores
    verifier.remember(release)
    return await verifier.verify(engine, release)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tolerance", "noise"), [(0.05, 0.01), (0.05, 0.0), (1e-3, 1e-6)])
async def test_an_engine_that_takes_every_version_passes_always(tolerance: float, noise: float) -> None:
    verifier, engine = Verifier(tolerance), Engine(noise)
    for release in releases(200, 0.001, noise):
        await serve(verifier, engine, release, release)


async def test_old_weights_within_the_tolerance_are_noticed() -> None:
    verifier, engine = Verifier(0.05), Engine(0.002)
    made = releases(60, 0.001, 0.002)
    for release in made[:20]:
        await serve(verifier, engine, release, release)
    stuck = made[19]
    with pytest.raises(PublishError, match="kept old weights"):
        for release in made[20:]:
            assert distance(release.probe_scores, stuck.probe_scores) < 0.045
            await serve(verifier, engine, release, stuck)


async def test_a_step_that_shows_is_judged_at_once() -> None:
    verifier, engine = Verifier(0.05), Engine(0.001)
    first, second = releases(2, 0.02, 0.001)
    await serve(verifier, engine, first, first)
    with pytest.raises(PublishError, match="nearer to version 1"):
        await serve(verifier, engine, second, first)
    # The way back is judged in the same manner.
    with pytest.raises(PublishError, match="nearer to version 2"):
        engine.scores = second.probe_scores
        await verifier.verify(engine, first)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_scores_that_are_no_numbers_never_pass(value: float) -> None:
    verifier, engine = Verifier(0.05), Engine(0.0)
    (release,) = releases(1, 0.0, 0.0)
    engine.scores = [value] * LENGTH
    with pytest.raises(PublishError, match="tolerance"):
        await verifier.verify(engine, release)  # type: ignore[arg-type]
