from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy import clock as clock_module
from hintloop_rollout_proxy.clock import MOST_TRIES, RedisClock


class Behind(MemoryBroker):
    """Its time is what a test says."""

    def __init__(self, time_ms: int) -> None:
        super().__init__("default")
        self.said_ms = time_ms

    async def time_ms(self) -> int:
        return self.said_ms


async def test_time_is_redis_time() -> None:
    broker = Behind(2_000_000_000_000)
    clock = RedisClock(broker)
    await clock.measure()

    assert 0 <= clock.now_ms() - broker.said_ms < 5_000


async def test_a_late_measurement_does_not_turn_time_back() -> None:
    broker = Behind(2_000_000_000_000)
    clock = RedisClock(broker)
    await clock.measure()
    began_ms = clock.now_ms()

    broker.said_ms -= 3_600_000
    await clock.measure()

    assert clock.now_ms() >= began_ms


class Machine(MemoryBroker):
    """A Redis whose time is the machine's and ``ahead_ms``, on a machine on which time passes as a test says: each
    question takes what ``trips_ms`` says, all of it on the way there (``slow="ask"``) or back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow: str = "answer") -> None:
        super().__init__("default")
        self.now_s, self.ahead_ms = 1_000.0, 1_700_000_000_000.0
        self.trips_ms: list[float] = []
        self.num_asked, self._slow = 0, slow
        monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=lambda: self.now_s, time=time.time))

    async def time_ms(self) -> int:
        self.num_asked += 1
        trip_s = (self.trips_ms.pop(0) if self.trips_ms else 0.2) / 1000
        self.now_s += trip_s if self._slow == "ask" else 0
        said_ms = int(self.now_s * 1000 + self.ahead_ms)
        self.now_s += trip_s if self._slow == "answer" else 0
        return said_ms

    def error_ms(self, clock: RedisClock) -> float:
        return clock.now_ms() - (self.now_s * 1000 + self.ahead_ms)


@pytest.mark.parametrize("slow", ["ask", "answer"])
async def test_a_slow_round_trip_is_measured_again(monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    machine = Machine(monkeypatch, slow)
    machine.trips_ms = [600.0, 300.0, 5.0, 1.0, 900.0]
    clock = RedisClock(machine)
    await clock.measure()
    assert machine.num_asked == 4
    assert abs(machine.error_ms(clock)) <= 2


async def test_of_slow_round_trips_the_best_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.trips_ms = [300.0, 30.0, *[60.0] * (MOST_TRIES - 2)]
    clock = RedisClock(machine)
    await clock.measure()
    assert (machine.num_asked, machine.trips_ms) == (MOST_TRIES, [])
    assert abs(machine.error_ms(clock)) <= 16


async def test_a_slow_redis_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.trips_ms = [5_000.0] * MOST_TRIES
    await RedisClock(machine).measure()
    assert machine.num_asked == 1


async def test_what_is_known_well_is_kept_when_the_machine_gets_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = RedisClock(machine)
    await clock.measure()
    for _ in range(10):
        machine.now_s += 5
        machine.trips_ms = [800.0] * MOST_TRIES
        await clock.measure()
    assert abs(machine.error_ms(clock)) <= 2


@pytest.mark.parametrize("change_ms", [-60_000, 60_000])
async def test_a_redis_whose_clock_was_set_is_followed(monkeypatch: pytest.MonkeyPatch, change_ms: int) -> None:
    machine = Machine(monkeypatch)
    clock = RedisClock(machine)
    await clock.measure()
    machine.ahead_ms += change_ms
    machine.trips_ms = [800.0] * MOST_TRIES
    await clock.measure()
    assert abs(machine.error_ms(clock)) <= 401, "as well as can be known"
    machine.trips_ms = []
    await clock.measure()
    assert abs(machine.error_ms(clock)) <= 2
