"""What the configuration of Redis says of the streams that every service opens."""

from __future__ import annotations

from typing import Any

from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Drop, DropReason, Stage, TurnRecord
from hintloop_contract.opening import open_broker
from hintloop_contract.streams import CAPTURES, TURNS
from hintloop_contract.tensors import pack

from .test_broker import capture, turn


async def test_a_turns_record_is_kept_for_the_configured_time(redis_server: Any) -> None:
    broker = open_broker(Config.model_validate({"redis": {"url": redis_server.url, "turn_retention_s": 77}}))
    await broker.ensure_groups()
    await broker.append(CAPTURES, capture())
    (entry,) = await broker.read(CAPTURES, "linker", 1, None)
    ids, scores = pack([1, 2], "int32"), pack([-0.5, -0.5], "float32")
    record = TurnRecord(turn_id="a", messages=b"[]", answer=b"{}", prompt_ids=ids, response_ids=ids, logprobs=scores)
    assert await broker.commit(entry, TURNS, turn(), record=record)
    key = broker.keys.turn("a")
    assert await broker.client.ttl(key) == -1
    (linked,) = await broker.read(TURNS, "judge", 1, None)
    await broker.drop(linked, Drop(turn_id="a", stage=Stage.JUDGE, reason=DropReason.NO_SIGNAL))
    assert 70 <= await broker.client.ttl(key) <= 77
    await broker.close()
