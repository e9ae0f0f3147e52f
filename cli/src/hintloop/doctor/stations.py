"""The chain in its order: one station after the other, so that the first thing wrong is named first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError

from hintloop.doctor.checks import (
    active,
    configuration,
    judging,
    learning,
    loss,
    policy,
    prm,
    redis,
    teaching,
    traffic,
    training,
)
from hintloop.doctor.finding import Finding, Outcome, fail, skipped
from hintloop.doctor.look import Look

Check = Callable[[Look], Awaitable[list[Finding]]]


@dataclass(frozen=True, slots=True)
class Station:
    """A place of the chain. Its check may take ``limit_s`` seconds; ``cause`` is what it means if it takes longer."""

    name: str
    check: Check
    cause: Cause
    limit_s: float = 30.0


STATIONS = (
    Station("configuration", configuration.check, Cause.CONFIGURATION_INVALID),
    Station("redis", redis.check, Cause.REDIS_AWAY),
    Station("policy", policy.check, Cause.PROXY_AWAY, 60.0),
    Station("prm", prm.check_engine, Cause.PRM_ENGINE_AWAY, 120.0),
    Station("services", prm.check_service, Cause.PRM_SERVICE_AWAY, 120.0),
    Station("judge", judging.check, Cause.JUDGE_ENGINE_AWAY, 120.0),
    Station("teacher", teaching.check, Cause.PRM_ENGINE_AWAY, 180.0),
    Station("loss", loss.check, Cause.CUSTOM_LOSS_UNUSABLE, 120.0),
    Station("trainer", training.check_running, Cause.TRAINER_AWAY),
    Station("publishing", training.check_published, Cause.ENGINE_BEHIND, 120.0),
    Station("learning", learning.check, Cause.ADVANTAGES_ALL_ZERO),
    Station("traffic", traffic.check, Cause.TURNS_DROPPED),
)
#: Visited last, and only when it is asked for: it changes something.
ACTIVE = Station("active", active.check, Cause.WEIGHTS_NEVER_PUBLISHED, 300.0)
NAMES = tuple(station.name for station in STATIONS)
#: What needs nothing but the configuration.
ALONE = ("configuration", "loss")
#: What `--only` of one station needs of those before it.
NEEDS = {
    "services": ("prm",),
    "teacher": ("redis", "prm"),
    "loss": ("redis",),
    "trainer": ("redis",),
    "publishing": ("redis", "policy"),
    "learning": ("redis",),
    "traffic": ("redis",),
}


@dataclass(frozen=True, slots=True)
class Visit:
    """What one station had to say."""

    station: str
    findings: list[Finding]
    seconds: float


def chosen(only: Sequence[str]) -> list[Station]:
    """The stations to visit; all of them for an empty ``only``."""
    wanted = set(only) | {needed for name in only for needed in NEEDS.get(name, ())}
    return [station for station in STATIONS if not only or station.name in wanted]


async def visit(look: Look, stations: Sequence[Station], tell: Callable[[Visit], None]) -> list[Visit]:
    """Visit one station after the other; ``tell`` hears of each as it is done."""
    visits = []
    for station in stations:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(station.limit_s) as limit:
                findings = await _findings(look, station)
        except Exception as error:  # noqa: BLE001 - an answer that nobody expected must not hide what others find
            findings = [_failed(station, error, timed_out=limit.expired())]
        visits.append(Visit(station.name, findings, time.perf_counter() - started))
        tell(visits[-1])
    return visits


def _failed(station: Station, error: Exception, *, timed_out: bool) -> Finding:
    if timed_out:
        return fail(station.name, f"no result within {station.limit_s:g} s", station.cause)
    away = isinstance(error, DependencyError) and error.dependency == "redis"
    seen = f"the check itself failed: {type(error).__name__}: {error}"
    return fail(station.name, seen, Cause.REDIS_AWAY if away else station.cause)


async def _findings(look: Look, station: Station) -> list[Finding]:
    if look is not None and look.alone and station.name not in ALONE:
        return [skipped(station.name, "the configuration alone is looked at")]
    return await station.check(look)


def worst(visits: Sequence[Visit]) -> Outcome:
    """``fail`` before ``warn`` before ``ok``."""
    outcomes = {finding.outcome for seen in visits for finding in seen.findings}
    return next((outcome for outcome in (Outcome.FAIL, Outcome.WARN) if outcome in outcomes), Outcome.OK)


def first_cause(visits: Sequence[Visit]) -> Cause | None:
    """The cause to mend first: of the first failure along the chain, else of the first warning."""
    findings = [finding for seen in visits for finding in seen.findings]
    for outcome in (Outcome.FAIL, Outcome.WARN):
        for finding in findings:
            if finding.outcome is outcome:
                return finding.cause
    return None
