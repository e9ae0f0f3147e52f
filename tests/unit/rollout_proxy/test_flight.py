"""Requests in flight: registered when they last, removed when they ended, whatever Redis does meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import flight as flight_module
from hintloop_rollout_proxy.flight import InFlight


class CountingBroker(MemoryBroker):
    """Counts round trips; with ``away`` they fail, after their effect when it is ``"after"``."""

    calls = 0
    away: str | None = None

    async def inflight_update(self, begun: Mapping[str, int], ended: Sequence[str]) -> None:
        self.calls += 1
        if self.away == "before":
            raise DependencyError("redis", "away")
        await super().inflight_update(begun, ended)
        if self.away == "after":
            raise DependencyError("redis", "away")


async def test_short_requests_cost_no_round_trip() -> None:
    broker = CountingBroker()
    flight = InFlight(broker)
    flight.begin("a", 1_000)
    await flight.register()
    flight.end("a")
    await flight.register()
    assert broker.calls == 0
    await broker.close()


async def test_many_that_last_are_one_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_module, "YOUNG_S", 0.0)
    broker = CountingBroker()
    flight = InFlight(broker)
    for number in range(16):
        flight.begin(str(number), 1_000 + number)
    await flight.register()
    assert (broker.calls, await broker.inflight_oldest(0)) == (1, 1_000)
    for number in range(15):
        flight.end(str(number))
    await flight.register()
    await flight.register()
    assert (broker.calls, await broker.inflight_oldest(0)) == (2, 1_015)
    await broker.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_nothing_stays_behind_when_redis_fails(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_module, "YOUNG_S", 0.0)
    broker = CountingBroker()
    flight = InFlight(broker)
    flight.begin("ends", 1_000)
    flight.begin("lasts", 2_000)
    broker.away = when
    with pytest.raises(DependencyError):
        await flight.register()
    broker.away = None
    flight.end("ends")
    await flight.register()
    assert await broker.inflight_oldest(0) == 2_000
    flight.end("lasts")
    await flight.register()
    assert await broker.inflight_oldest(0) is None
    await broker.close()
