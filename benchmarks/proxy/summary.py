"""From samples to medians and goals. Disturbed samples are left out, unless there is nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.goals import Goal
from benchmarks.proxy.contestants import DIRECT, LITELLM, OURS, PEER, PEER_SHARED
from benchmarks.proxy.measure import PACED, STREAM, STREAM_GAP, WHOLE, Sample, median


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one contestant in one mode; ``added``: milliseconds more than without a proxy in the same repeat."""

    contestant: str
    mode: str
    cpu_ms: float | None
    per_second: float | None
    added_p50: float | None
    added_p99: float | None
    added_first_p50: float | None
    added_first_p99: float | None
    memory_mb: float | None
    num_samples: int
    disturbed: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """Every row."""

    rows: list[Row]

    def row(self, contestant: str, mode: str) -> Row | None:
        """One row, if it was measured."""
        return next((row for row in self.rows if (row.contestant, row.mode) == (contestant, mode)), None)


def summarise(samples: Sequence[Sample]) -> Summary:
    """Medians over repeats."""
    keys = dict.fromkeys((sample.contestant, sample.mode) for sample in samples)
    return Summary([_row(contestant, mode, samples) for contestant, mode in keys])


def _usable(samples: Sequence[Sample], contestant: str, mode: str) -> list[Sample]:
    found = [sample for sample in samples if (sample.contestant, sample.mode) == (contestant, mode)]
    quiet = [sample for sample in found if not sample.disturbed]
    if quiet:
        return quiet
    # One a repeat: the least disturbed.
    best: dict[int, Sample] = {}
    for sample in found:
        if sample.repeat not in best or sample.foreign < best[sample.repeat].foreign:
            best[sample.repeat] = sample
    return list(best.values())


def _row(contestant: str, mode: str, samples: Sequence[Sample]) -> Row:
    own, direct = _usable(samples, contestant, mode), _usable(samples, DIRECT, mode)

    def added(name: str) -> float | None:
        base = median(getattr(sample, name) for sample in direct)
        value = median(getattr(sample, name) for sample in own)
        return None if base is None or value is None or contestant == DIRECT else value - base

    return Row(
        contestant=contestant,
        mode=mode,
        cpu_ms=median(sample.cpu_ms for sample in own),
        per_second=median(sample.per_second for sample in own),
        added_p50=added("done_p50"),
        added_p99=added("done_p99"),
        added_first_p50=added("first_p50"),
        added_first_p99=added("first_p99"),
        memory_mb=max((sample.memory_mb for sample in own if sample.memory_mb is not None), default=None),
        num_samples=len(own),
        disturbed=all(sample.disturbed for sample in own),
    )


def find_goals(summary: Summary) -> list[Goal]:
    """Every goal with what was measured."""

    def ours(mode: str, name: str) -> float | None:
        row = summary.row(OURS, mode)
        return None if row is None else getattr(row, name)

    def times(other: str, mode: str) -> float | None:
        row, own = summary.row(other, mode), ours(mode, "per_second")
        return None if row is None or own is None or not row.per_second else own / row.per_second

    memory = [row.memory_mb for row in summary.rows if row.contestant == OURS and row.memory_mb is not None]
    return [
        Goal("cpu_per_request", "at most", 0.35, ours(WHOLE.name, "cpu_ms"), "ms"),
        Goal("cpu_per_stream_no_gap", "at most", 1.2, ours(STREAM.name, "cpu_ms"), "ms"),
        Goal("cpu_per_stream_1ms_gap", "at most", 3.5, ours(STREAM_GAP.name, "cpu_ms"), "ms"),
        Goal("times_litellm_requests", "at least", 40, times(LITELLM, WHOLE.name), "x"),
        Goal("times_litellm_streams", "at least", 40, times(LITELLM, STREAM.name), "x"),
        Goal("times_peer_as_shipped", "at least", 60, times(PEER, WHOLE.name), "x"),
        Goal("times_peer_shared_client", "at least", 8, times(PEER_SHARED, WHOLE.name), "x"),
        Goal("added_p50_paced_100ms", "at most", 6, ours(PACED.name, "added_p50"), "ms"),
        Goal("added_first_chunk_p50", "at most", 4, ours(STREAM_GAP.name, "added_first_p50"), "ms"),
        Goal("memory_per_worker", "at most", 80, max(memory, default=None), "MB"),
    ]
