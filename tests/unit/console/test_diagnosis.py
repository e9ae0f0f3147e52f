"""The running diagnosis on real scripts: what is read of the history, windows, one writer, and what is exported."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from hintloop_console.diagnosis import AlarmCollector, AlarmWatch, watch_alarms, watching
from hintloop_console.loop_view import LoopView
from hintloop_console.metrics import ConsoleCollector
from hintloop_console.reader import Reader
from hintloop_contract.broker import WeightsState
from hintloop_contract.config import load_config
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.diagnosis import recognise as recognise_module
from hintloop_contract.diagnosis.alarms import AlarmState, Hysteresis
from hintloop_contract.diagnosis.figures import Expected, Gaps, Seen
from hintloop_contract.diagnosis.looking import MOST_CHARACTERS, Recent, look, recent_of
from hintloop_contract.errors import DependencyError
from hintloop_contract.history import HistoryBounds, StepFigures
from hintloop_contract.messages import Drop
from hintloop_contract.testing.memory import MemoryBroker
from prometheus_client import CollectorRegistry, generate_latest

from tests.unit.console.story import Story, linked, record

EXPECTED = Expected(needs=SignalNeeds(score=False, hint=True))


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    memory = MemoryBroker()
    memory._bounds = HistoryBounds(10_000, 10_000_000)
    await memory.ensure_groups()
    yield memory
    await memory.close()


def watch(broker: MemoryBroker) -> AlarmWatch:
    return AlarmWatch(broker, EXPECTED, Hysteresis(raise_after=2, clear_after=2))


@pytest.mark.parametrize("hours", [0, 3])
async def test_the_newest_of_a_long_history_is_what_counts(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    await broker.remember([StepFigures(step=number, figures={"entropy": 1.0}) for number in range(1, 3502)])
    now_ms = await broker.time_ms()

    async def later() -> int:
        return now_ms + hours * 3_600_000

    monkeypatch.setattr(broker, "time_ms", later)
    recent = await recent_of(broker)
    assert recent.steps[-1]["step"] == 3501
    assert recent.after == (await broker.history_state()).newest_id
    assert await broker.history(recent.after) == []


async def lose(broker: MemoryBroker, count: int, tag: str) -> None:
    await broker.count("captured", count)
    await broker.count("linked", count)
    for number in range(count):
        await broker.drop(None, Drop(turn_id=f"{tag}{number}", stage="judge", reason="no_hint", detail="none"))


async def test_what_happened_before_the_window_is_no_alarm_and_what_happens_in_it_is(broker: MemoryBroker) -> None:
    await lose(broker, 60, "a")
    looking = watch(broker)
    for _ in range(3):
        assert (await looking.look()).active == ()
    await lose(broker, 40, "b")
    await looking.look()
    (alarm,) = (await looking.look()).active
    assert alarm.cause == "no_hints" and alarm.evidence["dropped"] == 40 and "40 of 40" in alarm.seen
    assert (await broker.alarms()).active == (alarm,)


async def test_the_window_moves_on(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = watch(broker)
    await looking.look()
    await lose(broker, 40, "a")
    await looking.look()
    assert (await looking.look()).active
    monkeypatch.setattr(watching, "WINDOW_MS", -1)
    for _ in range(3):
        state = await looking.look()
    assert state.active == ()
    assert [alarm.cause for alarm in (await broker.alarms()).past] == ["no_hints"]


async def test_figures_come_from_the_history_once(broker: MemoryBroker) -> None:
    def step(number: int, entropy: float) -> StepFigures:
        return StepFigures(step=number, figures={"entropy": entropy})

    await broker.remember([step(number, 2.0) for number in range(1, 8)])
    looking = watch(broker)
    assert (await looking.look()).active == ()
    await broker.remember([step(number, 0.1) for number in range(8, 13)])
    await looking.look()
    (alarm,) = (await looking.look()).active
    assert alarm.cause == "entropy_falls" and alarm.evidence == {"first": 2.0, "now": pytest.approx(0.1)}
    assert looking._recent is not None and len(looking._recent.steps) == 12


def test_of_long_next_states_only_the_beginning_is_kept() -> None:
    recent, story = Recent(), Story()
    recent.add([story.entry("turn", linked(name), record(name, then="no " * 100_000)) for name in "ab"])
    assert [len(text) for text in recent.states.values()] == [MOST_CHARACTERS] * 2


@pytest.mark.parametrize("values", [(math.nan, math.nan), (math.inf, -math.inf)])
async def test_figures_that_are_no_numbers_end_no_watch_and_raise_no_alarm(
    broker: MemoryBroker, values: tuple[float, float]
) -> None:
    names = ("engine_difference_abs_mean", "advantage_mean", "advantage_std", "entropy")
    await broker.remember(
        [StepFigures(step=number, figures=dict.fromkeys(names, value)) for number, value in enumerate(values)]
    )
    looking = watch(broker)
    await looking.look()
    assert (await looking.look()).active == ()


async def test_the_released_step_is_read_of_the_versions_own_notes(broker: MemoryBroker) -> None:
    for version, step, parent in ((3, 2, ""), (4, 3, "3"), (5, 4, "4")):
        notes = {"step": str(step), "parent": parent, "weights_hash": f"h{step}"}
        await broker.describe_version(version, notes)
    await broker.set_weights(WeightsState(current=4))
    assert (await look(broker, Recent())).hashes == [(2, "h2"), (3, "h3")]
    await broker.set_weights(WeightsState(current=9))
    assert (await look(broker, Recent())).hashes == []


async def test_one_writes_and_another_takes_over_what_stands(broker: MemoryBroker) -> None:
    one, two = watch(broker), watch(broker)
    await one.look()
    await two.look()
    await lose(broker, 40, "a")
    for _ in range(2):
        await one.look()
    (alarm,) = (await broker.alarms()).active
    await broker.client.delete(broker.keys.of("alarms:lease"))
    third = watch(broker)
    assert [a.since_ms for a in (await third.look()).active] == [alarm.since_ms]


async def test_redis_away_ends_no_watch(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[int] = []

    async def away() -> int:
        looks.append(1)
        raise DependencyError("redis", "gone")

    monkeypatch.setattr(broker, "time_ms", away)
    stop = asyncio.Event()
    (tmp_path / "config.toml").write_text("")
    loaded = load_config([tmp_path / "config.toml"], environ={})
    running = asyncio.create_task(watch_alarms(broker, loaded, stop, look_s=0.01))
    async with asyncio.timeout(60):
        while len(looks) < 3:
            await asyncio.sleep(0.01)
    stop.set()
    await running


async def test_a_recogniser_that_raises_is_counted_and_ends_no_other(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entropy(*_: object) -> None:
        raise ZeroDivisionError("no tokens")

    every = (entropy, *recognise_module.EVERY)
    monkeypatch.setattr(
        watching, "recognise", lambda seen, expected, **more: recognise_module.recognise(seen, expected, every, **more)
    )
    looking = watch(broker)
    with structlog.testing.capture_logs() as logs:
        await looking.look()
        await lose(broker, 40, "a")
        await looking.look()
        (alarm,) = (await looking.look()).active
    assert alarm.cause == "no_hints"
    assert sum(looking.failures.counts.values()) == 3
    [said] = [entry for entry in logs if entry["log_level"] == "error"]
    assert said["place"].endswith(".entropy") and isinstance(said["exc_info"], ZeroDivisionError)
    registry = CollectorRegistry()
    registry.register(ConsoleCollector(Reader(broker, None), LoopView(broker), looking.failures))  # type: ignore[arg-type]
    assert f'hintloop_console_look_failures_total{{place="{said["place"]}"}} 3.0' in generate_latest(registry).decode()


def test_without_anyone_to_tell_a_recogniser_that_raises_is_heard() -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recognise_module.recognise(Seen(), EXPECTED, [broken])


async def test_a_look_that_raises_ends_no_watch(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> int:
        raise KeyError("what no recogniser expects")

    monkeypatch.setattr(broker, "time_ms", broken)
    stop, failures = asyncio.Event(), watching.LookFailures()
    running = asyncio.create_task(watch_alarms(broker, load_config(environ={}), stop, failures, look_s=0.01))
    async with asyncio.timeout(60):
        while failures.counts["look"] < 3:
            await asyncio.sleep(0.01)
    stop.set()
    await running


async def test_prometheus_shows_every_cause_and_nothing_while_nobody_looks(broker: MemoryBroker) -> None:
    registry, state = CollectorRegistry(), AlarmState()
    registry.register(AlarmCollector(lambda: state))
    assert "hintloop_alarm{" not in generate_latest(registry).decode()
    looking = watch(broker)
    await looking.look()
    await lose(broker, 40, "a")
    await looking.look()
    state = await looking.look()
    text = generate_latest(registry).decode()
    assert 'hintloop_alarm{cause="no_hints"} 1.0' in text
    assert 'hintloop_alarm{cause="engine_drift"} 0.0' in text


def test_gaps_of_a_window() -> None:
    assert watching.gaps_since(Gaps(12, 2, 9.0, 3, 40.0), Gaps(10, 1, 8.0, 1, 30.0)) == Gaps(2, 1, 9.0, 2, 40.0)
    assert watching.gaps_since(Gaps(2, 0, 1.0), Gaps(10, 1, 8.0)) == Gaps(2, 0, 1.0), "the linker began anew"
