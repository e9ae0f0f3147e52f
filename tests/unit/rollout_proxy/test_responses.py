"""Requests that refer to earlier answers, across replicas, tenants and a Redis that is away."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.apis import response_store, responses
from hintloop_rollout_proxy.apis.response_store import ResponseStore, StoredResponse
from hintloop_rollout_proxy.apis.responses import ResponsesApi
from hintloop_rollout_proxy.apis.translation import UntranslatableError
from hintloop_rollout_proxy.errors import MemoryAwayError, UnknownItemError, UnknownResponseError

from .scripted_answers import CALLING, EVERYTHING, PLAIN, Script, as_fields

TOOLS = [{"type": "function", "name": name} for name in ("weather", "clock")]


class Away:
    """A Redis that is away."""

    async def keep(self, kind: str, name: str, value: bytes, *, ttl_s: int, max_entries: int) -> None:
        raise DependencyError("redis", "away")

    async def kept(self, kind: str, name: str) -> bytes | None:
        raise DependencyError("redis", "away")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "PATIENCE_S", (0.001,))


async def answer(api: ResponsesApi, script: Script, tenant: str = "t", **body: Any) -> dict[str, Any]:
    translation = await api.translate(as_fields({"model": "m", "tools": TOOLS, **body}), tenant)
    document: dict[str, Any] = json.loads(translation.body(script.whole("vllm")))
    await api.finish(translation, tenant)
    return document


async def seen(api: ResponsesApi, tenant: str = "t", **body: Any) -> list[dict[str, Any]]:
    translation = await api.translate(as_fields({"model": "m", "tools": TOOLS, **body}), tenant)
    found: list[dict[str, Any]] = json.loads(bytes(translation.fields["messages"]))
    return found


async def test_a_chain_of_answers_is_the_whole_conversation_at_another_replica() -> None:
    broker = MemoryBroker()
    one, two = (ResponsesApi(ResponseStore(broker, ttl_s=60)) for _ in range(2))
    first = await answer(one, CALLING, input="Weather?", instructions="I1")
    results = [{"type": "function_call_output", "call_id": call[0], "output": "sun"} for call in CALLING.calls]
    second = await answer(two, PLAIN, input=results, previous_response_id=first["id"], instructions="I2")
    assert second["previous_response_id"] == first["id"]
    found = await seen(one, input="Thanks", previous_response_id=second["id"])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert found[1]["content"] == CALLING.text
    assert [call["id"] for call in found[1]["tool_calls"]] == [call[0] for call in CALLING.calls]
    assert found[4]["content"] == PLAIN.text
    await broker.close()


async def test_instructions_do_not_carry_over() -> None:
    api = ResponsesApi(ResponseStore(Away(), ttl_s=60))
    first = await answer(api, PLAIN, input="Hi", instructions="Old.")
    found = await seen(api, input="More", previous_response_id=first["id"], instructions="New.")
    assert [message["content"] for message in found if message["role"] == "system"] == ["New."]


async def test_the_history_is_what_an_agent_would_echo() -> None:
    api = ResponsesApi(ResponseStore(Away(), ttl_s=60))
    first = await answer(api, EVERYTHING, input="Hi")
    results = [{"type": "function_call_output", "call_id": call[0], "output": "r"} for call in EVERYTHING.calls]
    by_id = await seen(api, input=results, previous_response_id=first["id"])
    echoed = await seen(api, input=[{"role": "user", "content": "Hi"}, *first["output"], *results])
    assert by_id == echoed


async def test_items_are_found_by_their_ids() -> None:
    api = ResponsesApi(ResponseStore(Away(), ttl_s=60))
    first = await answer(api, EVERYTHING, input="Hi")
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    references[0].pop("type")
    results = [{"type": "function_call_output", "call_id": call[0], "output": "r"} for call in EVERYTHING.calls]
    found = await seen(api, input=[{"role": "user", "content": "Hi"}, *references, *results])
    assert found[1]["reasoning"] == EVERYTHING.reasoning
    assert len(found[1]["tool_calls"]) == 2
    unknown = first["output"][0]["id"][:-1] + "9"
    with pytest.raises(UnknownItemError, match=unknown):
        await seen(api, input=[{"type": "item_reference", "id": unknown}])


async def test_what_is_not_remembered_is_the_vendors_error() -> None:
    broker = MemoryBroker()
    api = ResponsesApi(ResponseStore(broker, ttl_s=60))
    mine = await answer(api, PLAIN, input="Hi", tenant="a")
    unstored = await answer(api, PLAIN, input="Hi", tenant="a", store=False)
    failed = await answer(api, Script(text="x", finish="abort"), input="Hi", tenant="a")
    for identifier, tenant in ((mine["id"], "b"), (unstored["id"], "a"), (failed["id"], "a")):
        with pytest.raises(UnknownResponseError) as raised:
            await seen(api, tenant, input="More", previous_response_id=identifier)
        error = json.loads(raised.value.body())["error"]
        assert (raised.value.status, error["code"]) == (400, "previous_response_not_found")
        assert error["param"] == "previous_response_id"
        assert identifier in error["message"]
    await broker.close()


@pytest.mark.parametrize("identifier", ["resp_68a0", "resp_" + "0" * 32, 7])
async def test_ids_of_others_are_the_engines_business(identifier: object) -> None:
    api = ResponsesApi(ResponseStore(Away(), ttl_s=60))
    with pytest.raises(UntranslatableError):
        await api.translate(as_fields({"input": "Hi", "previous_response_id": identifier}), "t")
    with pytest.raises(UntranslatableError):
        await api.translate(as_fields({"input": [{"type": "item_reference", "id": identifier}]}), "t")


async def test_a_redis_that_is_away_costs_only_what_is_not_known_here() -> None:
    here, there = (ResponsesApi(ResponseStore(Away(), ttl_s=60)) for _ in range(2))
    first = await answer(here, PLAIN, input="Hi")
    assert len(await seen(here, input="More", previous_response_id=first["id"])) == 3
    with pytest.raises(MemoryAwayError, match="send the whole input"):
        await seen(there, input="More", previous_response_id=first["id"])


async def test_an_answer_stored_a_moment_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    here, there = (ResponsesApi(ResponseStore(broker, ttl_s=60)) for _ in range(2))
    translation = await here.translate(as_fields({"model": "m", "input": "Hi"}), "t")
    document = json.loads(translation.body(PLAIN.whole("vllm")))

    async def meanwhile(delay_s: float) -> None:
        await here.finish(translation, "t")

    monkeypatch.setattr(response_store.asyncio, "sleep", meanwhile)
    assert len(await seen(there, input="More", previous_response_id=document["id"])) == 3
    await broker.close()


async def test_what_cannot_be_read_is_not_remembered() -> None:
    broker = MemoryBroker()
    await broker.keep(response_store.KIND, "core", b"something else", ttl_s=60, max_entries=9)
    assert await ResponseStore(broker, ttl_s=60).get("core", "t") is None
    await broker.close()


async def test_own_memory_is_bounded_and_the_oldest_go() -> None:
    store = ResponseStore(Away(), ttl_s=60, max_local_bytes=1000)
    stored = StoredResponse(tenant="t", messages=b"[]", output=b"[]")
    big = msgspec.structs.replace(stored, messages=bytes(range(256)) * 8)
    for number in range(100):
        await store.put(f"core{number}", stored)
        await store.get("core0", "t")
    await store.put("core99", stored)
    await store.put("big", msgspec.structs.replace(big, output=json.dumps([str(i) for i in range(5000)]).encode()))
    assert store._local_bytes == sum(map(len, store._local.values())) <= 1000
    assert "core99" in store._local and "core0" in store._local
    assert "core1" not in store._local and "big" not in store._local
    with pytest.raises(DependencyError):
        await store.get("core1", "t")


def test_fields_that_are_no_json_are_the_engines_business() -> None:
    fields = {"input": msgspec.Raw(b"[" * 100_000)}
    with pytest.raises(UntranslatableError, match="cannot be read"):
        responses.translate(fields)
