import io

from hintloop import funnel
from hintloop_contract.broker import WeightsState
from hintloop_contract.diagnosis.alarms import Alarm
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.messages import Drop
from hintloop_contract.testing.memory import MemoryBroker
from rich.console import Console


async def test_a_look_shows_steps_drops_streams_and_versions() -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    await broker.count("captured", 5)
    await broker.count("trained", 2)
    await broker.drop(None, Drop(turn_id="a", stage="capture", reason="aborted"))
    await broker.drop(None, Drop(turn_id="b", stage="link", reason="no_next_state"))
    await broker.drop(None, Drop(turn_id="c", stage="link", reason="no_next_state"))
    await broker.set_weights(WeightsState(current=3, updating=4))
    await broker.set_status("trainer", {"loss": "0.25", "phase": "training"})
    snapshot = await funnel.take(broker)
    await broker.close()
    assert list(snapshot.steps) == ["captured", "linked", "judged", "hinted", "scored", "batched", "trained"]
    assert (snapshot.steps["captured"], snapshot.steps["linked"], snapshot.steps["trained"]) == (5, 0, 2)
    assert snapshot.drops == {"capture:aborted": 1, "link:no_next_state": 2}
    assert (snapshot.num_dropped("link"), snapshot.num_dropped("train")) == (2, 0)
    assert snapshot.as_dict()["streams"]["drops"] == {"length": 3, "pending": 0}
    with Console(width=100, record=True, file=io.StringIO()) as console:
        console.print(funnel.render(snapshot))
    text = console.export_text()
    for part in ("captured", "link:no_next_state", "version 3, publishing 4", "loss", "0.25"):
        assert part in text


async def test_alarms_stand_below_with_their_fix() -> None:
    broker = MemoryBroker()
    await broker.ensure_groups()
    assert "nobody looks" in str(funnel.alarm_lines((await funnel.take(broker)).alarms))
    alarm = Alarm(cause="no_hints", since_ms=1_000, seen="40 of 52 turns\x1b[2J", evidence={"dropped": 40}, grave=True)
    later = Alarm(cause="of_a_later_version", since_ms=1_000, seen="something")
    await broker.set_alarms("console-1", 181_000, [alarm, later], [], lease_ms=60_000)
    snapshot = await funnel.take(broker)
    await broker.close()
    text = str(funnel.alarm_lines(snapshot.alarms))
    assert "no_hints for 3 min: 40 of 52 turns" in text and EXPLANATIONS[Cause.NO_HINTS].fix in text
    assert "of_a_later_version" in text and "\x1b" not in text
    assert snapshot.as_dict()["alarms"]["active"][0]["evidence"] == {"dropped": 40}
