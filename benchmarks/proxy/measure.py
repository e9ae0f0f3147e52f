"""One sample: load on one contestant in one mode, its CPU and latencies, and whether somebody else used the core."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.proxy.contestants import OURS, Contestant, Site

CONNECTIONS = 16
#: Share of the core's time that others may use in a sample.
FOREIGN_LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class Mode:
    """How the engine answers. ``delay_us`` is a whole answer's, ``gap_us`` from one event to the next."""

    name: str
    streamed: bool
    delay_us: int = 0
    gap_us: int = 0


WHOLE = Mode("whole", False)
PACED = Mode("paced", False, delay_us=100_000)
STREAM = Mode("stream", True)
#: Who reads a whole answer waits as long as the stream takes.
STREAM_GAP = Mode("stream-gap", True, delay_us=102_000, gap_us=1_000)
MODES = (WHOLE, PACED, STREAM, STREAM_GAP)


@dataclass(frozen=True, slots=True)
class Sample:
    """Latencies are milliseconds from the request to the body's first byte and to its end."""

    contestant: str
    mode: str
    repeat: int
    count: int
    bad: int
    seconds: float
    per_second: float
    cpu_ms: float | None
    done_p50: float
    done_p99: float
    first_p50: float
    first_p99: float
    memory_mb: float | None
    foreign: float

    @property
    def disturbed(self) -> bool:
        """Whether it is discarded."""
        return self.foreign > FOREIGN_LIMIT


def take_sample(site: Site, contestant: Contestant, mode: Mode, repeat: int, seconds: float) -> Sample:
    """Warm up and measure. Raises ``RuntimeError`` when an answer was not what it should be, or none came."""
    site.pace(mode.delay_us, mode.gap_us)
    _ask(site, contestant, mode, min(0.4, seconds / 4))
    if contestant.name == OURS:
        # What a linker would have taken away.
        with redis.Redis(port=site.redis_port) as client:
            client.delete(*(client.keys("hl:*:captures") or ["none"]))
    servers = [server for server in site.core.servers if server is not contestant.server]
    busy, shared, own = site.core.busy_s, [server.cpu_s for server in servers], _cpu_s(contestant)
    count, bad, elapsed, latencies, load_s = _ask(site, contestant, mode, seconds)
    own = _cpu_s(contestant) - own
    # Idle contestants count as others, were they not idle; the engine and Redis serve this one.
    serving = sum(
        server.cpu_s - before
        for server, before in zip(servers, shared, strict=True)
        if server in (site.engine, site.redis)
    )
    foreign = (site.core.busy_s - busy - own - serving - load_s) / elapsed
    if bad or not count:
        raise RuntimeError(f"{contestant.name}, {mode.name}: {bad} of {count} answers were bad")
    first, done = ([pair[i] / 1000 for pair in latencies] for i in (0, 1))
    return Sample(
        contestant=contestant.name,
        mode=mode.name,
        repeat=repeat,
        count=count,
        bad=bad,
        seconds=elapsed,
        per_second=count / elapsed,
        cpu_ms=None if contestant.server is None else own * 1000 / count,
        done_p50=quantile(done, 0.5),
        done_p99=quantile(done, 0.99),
        first_p50=quantile(first, 0.5),
        first_p99=quantile(first, 0.99),
        memory_mb=None if contestant.server is None else contestant.server.memory_mb,
        foreign=max(0.0, foreign),
    )


def _cpu_s(contestant: Contestant) -> float:
    return 0.0 if contestant.server is None else contestant.server.cpu_s


def _ask(
    site: Site, contestant: Contestant, mode: Mode, seconds: float
) -> tuple[int, int, float, list[tuple[int, int]], float]:
    if contestant.server is not None:
        contestant.server.check()
    out: Path = site.folder / "latencies"
    request = site.wire.stream_request if mode.streamed else site.wire.request
    printed, cpu_s = site.core.run(
        [str(site.load), str(contestant.port), str(request), str(CONNECTIONS), str(seconds), str(out)]
    )
    count, bad, elapsed = printed.split()
    pairs = [line.split() for line in out.read_text().splitlines()]
    return int(count), int(bad), float(elapsed), [(int(first), int(done)) for first, done in pairs], cpu_s


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is there, or ``None``."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None
