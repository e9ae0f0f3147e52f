"""What is captured of every API: completions, generate, several choices, translations; and what is tried anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hintloop_contract.tensors import unpack
from hintloop_rollout_proxy.apis.translation import Fields, TranslatedApi, UntranslatableError

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
TEXT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["completion", "completion_stream"])
async def test_completion(kind: str, name: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = kind
    fake_engine.replay(name, split=100)
    asked = {"prompt": TEXT, "max_tokens": 4, "temperature": 0.5, "stream": "stream" in name}
    async with proxy() as running:
        status, data = await running.post("/v1/completions", asked)
        (capture,) = await running.captures()
    whole = wire(kind, "completion")["body"]["choices"][0]
    assert status == 200 and b"7042" not in data
    assert (capture.api, capture.problem, capture.finish_reason) == ("completions", None, "length")
    assert json.loads(capture.answer) == {"role": "assistant", "content": whole["text"]}
    assert json.loads(capture.request) == asked
    assert unpack(capture.prompt_ids).tolist() == PROMPT_IDS
    assert unpack(capture.response_ids).tolist() == whole["token_ids"]
    assert unpack(capture.logprobs).tolist() == pytest.approx(whole["logprobs"]["token_logprobs"])
    assert (capture.sampling.temperature, capture.sampling.max_tokens) == (0.5, 4)
    assert capture.usage_completion_tokens == 4 and capture.chat_request is None
    sent = fake_engine.seen[0][1]
    assert sent["return_token_ids"] is True and sent["logprobs"] == 0


@pytest.mark.parametrize("name", ["gen_ids", "gen_stream_stop"])
async def test_generate(name: str, fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = "sglang"
    fake_engine.replay(name, split=333)
    recorded = wire("sglang", name)
    body = recorded["body"]
    last = json.loads(body.split("\n\n")[-3][6:]) if isinstance(body, str) else body
    asked = {key: value for key, value in recorded["request"]["body"].items() if not key.startswith("return")}
    async with proxy() as running:
        status, data = await running.post("/generate", asked)
        (capture,) = await running.captures()
    assert status == 200 and b"logprob" not in data and b"prompt_token_ids" not in data
    assert (capture.api, capture.problem, capture.finish_reason) == ("generate", None, "stop")
    assert json.loads(capture.answer)["content"] == last["text"]
    assert unpack(capture.prompt_ids).tolist() == last["prompt_token_ids"]
    assert unpack(capture.response_ids).tolist() == last["output_ids"]
    scores = [entry[0] for entry in last["meta_info"]["output_token_logprobs"]]
    assert unpack(capture.logprobs).tolist() == pytest.approx(scores)
    assert capture.response_id == last["meta_info"]["id"] and capture.sampling.max_tokens == 32
    sent = fake_engine.seen[0][1]
    assert sent["return_logprob"] is True and sent["return_prompt_token_ids"] is True


async def test_increments_of_generate_are_joined(fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.kind = "sglang"
    events = [json.loads(event[6:]) for event in wire("sglang", "gen_stream")["body"].split("\n\n")[:-2]]
    num_seen, text = 0, ""
    for event in events:
        whole_text, num = event["text"], len(event["output_ids"])
        event["text"] = event["text"][len(text) :]
        event["output_ids"] = event["output_ids"][num_seen:]
        event["meta_info"]["output_token_logprobs"] = event["meta_info"]["output_token_logprobs"][num_seen:]
        num_seen, text = num, whole_text

    async def reply(request: web.Request) -> web.StreamResponse:
        lines = [f"data: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events]
        return web.Response(text="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")

    fake_engine.reply = reply
    async with proxy() as running:
        await running.post("/generate", {"text": TEXT, "stream": True})
        (capture,) = await running.captures()
    assert (capture.problem, json.loads(capture.answer)["content"]) == (None, text)
    assert unpack(capture.response_ids).tolist() == [7042, 30, 198, 198]


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("vllm", "/v1/chat/completions", "chat_n2"),
        ("vllm", "/v1/chat/completions", "chat_stream_n2"),
        ("vllm", "/v1/completions", "completion_n2"),
        ("vllm", "/v1/completions", "completion_stream_n2"),
        ("sglang", "/v1/chat/completions", "chat_n2"),
        ("sglang", "/v1/chat/completions", "chat_stream_n2"),
        ("sglang", "/v1/completions", "completion_n2"),
        ("sglang", "/v1/completions", "completion_stream_n2"),
        ("sglang", "/generate", "gen_n2"),
        ("sglang", "/generate", "gen_stream_n2"),
    ],
)
async def test_every_choice_has_a_capture(
    kind: str, path: str, name: str, fake_engine: Any, proxy: Any, wire: Any
) -> None:
    fake_engine.kind = kind
    fake_engine.replay(name)
    asked = wire(kind, name)["request"]["body"]
    async with proxy() as running:
        await running.post(path, asked)
        captures = await running.captures(2)
        assert len(running.deps.flight) == 0
    found = [(capture.choice, capture.num_choices, capture.problem) for capture in captures]
    assert found == [(0, 2, None), (1, 2, None)]
    assert len({capture.turn_id for capture in captures}) == 2
    assert len({capture.response_id for capture in captures}) == 1
    for capture in captures:
        assert len(capture.response_ids) == len(capture.logprobs) == capture.usage_completion_tokens == 4
        assert json.loads(capture.answer)["content"]
    first, second = captures
    assert unpack(first.prompt_ids).tolist() == unpack(second.prompt_ids).tolist()


async def test_choices_are_checked_one_by_one(fake_engine: Any, proxy: Any, wire: Any) -> None:
    body = wire("vllm", "chat_n2")["body"]
    body["choices"][1]["logprobs"]["content"][2]["logprob"] = None

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    fake_engine.reply = reply
    async with proxy() as running:
        await running.ask(QUESTION | {"n": 2})
        captures = await running.captures(2)
    assert [capture.problem for capture in captures] == [None, "logprob_missing"]


@pytest.mark.parametrize("counted", ["some number", "one choice's", "nothing"])
async def test_choices_that_usage_does_not_count_are_not_trained(
    counted: str, fake_engine: Any, proxy: Any, wire: Any
) -> None:
    body = wire("vllm", "chat_n2")["body"]
    # As many as one choice alone has say nothing about it: a token too many in one may hide the other's.
    alone = len(body["choices"][0]["token_ids"])
    body["usage"]["completion_tokens"] = {"some number": 99, "one choice's": alone, "nothing": 0}[counted]

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    fake_engine.reply = reply
    async with proxy() as running:
        await running.ask(QUESTION | {"n": 2})
        captures = await running.captures(2)
    assert [capture.problem for capture in captures] == ["count_mismatch"] * 2


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("vllm", "/v1/completions", "completion_list_plain"),
        ("vllm", "/v1/completions", "completion_echo_plain"),
        ("sglang", "/generate", "gen_batch_plain"),
    ],
)
async def test_batches_and_echoes_are_served_alone(
    kind: str, path: str, name: str, fake_engine: Any, proxy: Any, wire: Any
) -> None:
    fake_engine.kind, fake_engine.model = kind, "policy"
    fake_engine.replay(name)
    asked = wire(kind, name)["request"]["body"]
    async with proxy() as running:
        _, data = await running.post(path, asked)
        captures = await running.captures()
    assert json.loads(data) == wire(kind, name)["body"]
    assert fake_engine.seen[0][1] == asked
    assert {capture.problem for capture in captures} == {"not_trainable"}


async def test_engine_without_generate_says_so_itself(fake_engine: Any, proxy: Any) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    fake_engine.reply = reply
    async with proxy() as running:
        status, data = await running.post("/generate", {"text": "a"})
        (capture,) = await running.captures()
    assert (status, json.loads(data)) == (404, {"detail": "Not Found"})
    assert (capture.problem, capture.api) == ("upstream_error", "generate")


@pytest.mark.parametrize(
    ("message", "refused", "taken"),
    [
        ({"role": "developer", "content": "Be brief."}, '"developer"', {"role": "system", "content": "Be brief."}),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]},
            '"arguments": {',
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}]},
        ),
    ],
)
async def test_forms_that_the_engine_refuses_are_mended(
    message: dict[str, Any], refused: str, taken: dict[str, Any], fake_engine: Any, proxy: Any, wire: Any
) -> None:
    async def narrow(request: web.Request) -> web.StreamResponse:
        asked = json.dumps(await request.json())
        if refused in asked:
            return web.json_response({"error": {"message": "no such form"}}, status=400)
        return web.json_response(wire("vllm", "chat_stop")["body"])

    fake_engine.reply = narrow
    asked = {"messages": [message, *QUESTION["messages"]]}
    async with proxy() as running:
        for _ in range(2):
            status, _ = await running.ask(asked)
            assert status == 200
        captures = await running.captures(2)
    # Two refusals teach that the engine takes the other form alone.
    assert len(fake_engine.seen) == 4
    for capture in captures:
        assert capture.problem is None
        assert json.loads(capture.request) == asked
        assert json.loads(capture.chat_request)["messages"] == [taken, *QUESTION["messages"]]


async def test_what_is_refused_in_every_form_is_refused_in_the_clients_words(fake_engine: Any, proxy: Any) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        number = len(fake_engine.seen)
        return web.json_response({"error": {"message": f"refusal {number}"}}, status=400)

    fake_engine.reply = reply
    async with proxy() as running:
        status, data = await running.ask({"messages": [{"role": "developer", "content": "x"}]})
        (capture,) = await running.captures()
    # The second request is what the client wrote.
    assert (status, json.loads(data)["error"]["message"], len(fake_engine.seen)) == (400, "refusal 2", 3)
    assert capture.problem == "upstream_error" and capture.chat_request is None


async def test_developer_role_stays_where_the_engine_takes_it(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    messages = [{"role": "developer", "content": "Be brief."}, *QUESTION["messages"]]
    async with proxy() as running:
        await running.ask({"messages": messages})
    assert fake_engine.seen[0][1]["messages"] == messages


class Shouting:
    """A made-up API: the text of the answer in capitals, one event a chunk."""

    response_id = "shout_1"

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.finished: list[str] = []

    def body(self, chat: bytes) -> bytes:
        return msgspec.json.encode({"id": self.response_id, "text": self._text(chat, "message")})

    def begin(self) -> bytes:
        return b"event: begin\n\n"

    def event(self, chunk: bytes) -> bytes:
        return b"data: " + self._text(chunk, "delta").encode() + b"\n\n"

    def end(self) -> bytes:
        return b"event: end\n\n"

    def error(self, status: int, body: bytes) -> bytes:
        return b"ERROR %d %b" % (status, body)

    def broken(self, detail: str) -> bytes:
        return b"event: broken\n\n"

    def _text(self, data: bytes, member: str) -> str:
        choices = json.loads(data)["choices"]
        assert b"token_ids" not in data.replace(b'"token_ids":null', b"").replace(b'"prompt_token_ids":null', b"")
        return str(choices[0][member].get("content") or "").upper() if choices else ""


@contextmanager
def shouted(running: Any, finished: list[str]) -> Iterator[None]:
    async def translate(fields: Fields, tenant: str) -> Shouting:
        if "odd" in fields:
            raise UntranslatableError("odd")
        asked = {"messages": [{"role": "user", "content": "hi"}], "stream": msgspec.json.decode(fields["stream"])}
        return Shouting({name: msgspec.Raw(msgspec.json.encode(value)) for name, value in asked.items()})

    async def finish(translation: Any, tenant: str) -> None:
        finished.append(translation.response_id)

    mapping: Any = running.deps.translated
    before = dict(mapping)
    mapping["/v1/responses"] = TranslatedApi("responses", translate, finish)
    yield
    mapping.clear()
    mapping.update(before)


@pytest.mark.parametrize("stream", [False, True])
async def test_translated_api(stream: bool, fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stream_stop" if stream else "chat_stop", split=90)
    finished: list[str] = []
    async with proxy() as running:
        with shouted(running, finished):
            status, data = await running.post("/v1/responses?x=1", {"input": "hi", "stream": stream})
            (capture,) = await running.captures()
    assert status == 200
    if stream:
        events = [event for event in data.decode().split("\n\n") if event]
        assert (events[0], events[-1]) == ("event: begin", "event: end")
        assert "".join(event[6:] for event in events[1:-1]) == "THE CAPITAL OF FRANCE IS PARIS."
    else:
        assert json.loads(data) == {"id": "shout_1", "text": "THE CAPITAL OF FRANCE IS PARIS."}
    assert (capture.api, capture.problem, capture.response_id) == ("responses", None, "shout_1")
    assert json.loads(capture.request) == {"input": "hi", "stream": stream}
    assert json.loads(capture.chat_request)["messages"] == [{"role": "user", "content": "hi"}]
    assert json.loads(capture.answer)["content"] == "The capital of France is Paris."
    assert finished == ["shout_1"]


async def test_error_and_break_of_a_translated_api(fake_engine: Any, proxy: Any, wire: Any) -> None:
    fake_engine.replay("chat_bad_temperature")
    finished: list[str] = []
    async with proxy() as running:
        with shouted(running, finished):
            status, data = await running.post("/v1/responses", {"stream": False})
            assert status == 400 and data.startswith(b'ERROR 400 {"error":')
            events = wire("vllm", "chat_stream_stop")["body"].split("\n\n")[:4]

            async def cut(request: web.Request) -> web.StreamResponse:
                return web.Response(text="\n\n".join(events) + "\n\n", content_type="text/event-stream")

            fake_engine.reply = cut
            status, data = await running.post("/v1/responses", {"stream": True})
            captures = await running.captures(2)
    assert status == 200 and data.endswith(b"event: broken\n\n")
    assert [capture.problem for capture in captures] == ["upstream_error", "aborted"]
    assert finished == []


async def test_untranslatable_goes_to_the_engines_own_endpoint(fake_engine: Any, proxy: Any) -> None:
    async with proxy() as running:
        with shouted(running, []):
            status, data = await running.post("/v1/responses?beta=true", {"odd": 1})
            (capture,) = await running.captures()
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert status == 418 and json.loads(data)["path"] == "/v1/responses?beta=true"
    assert 'hintloop_proxy_untranslated_total{path="/v1/responses"} 1.0' in metrics
    assert (capture.api, capture.status) == ("responses", "refused")


async def test_engine_that_restarts_is_waited_for(fake_engine: Any, proxy: Any) -> None:
    """The first connections are refused or cut before an answer; nothing was sent to the client yet."""
    fake_engine.replay("chat_stop")
    cut: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut.append(1)
        await reader.read(1)
        writer.close()

    dying = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = dying.sockets[0].getsockname()[1]
    engines = {"policy": {"engines": [f"http://127.0.0.1:{port}"]}, "proxy": {"engine_wait_s": 20.0}}
    async with proxy(probed=False, **engines) as running:
        asking = asyncio.create_task(running.ask(QUESTION))
        while len(cut) < 3:
            await asyncio.sleep(0.01)
        dying.close()
        await dying.wait_closed()
        await asyncio.sleep(0.3)
        runner = web.AppRunner(fake_engine.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        status, _ = await asking
        await runner.cleanup()
    assert status == 200


async def test_client_that_leaves_while_an_engine_is_waited_for(fake_engine: Any, proxy: Any) -> None:
    engines = {"policy": {"engines": ["http://127.0.0.1:9"]}, "proxy": {"engine_wait_s": 60.0}}
    async with proxy(probed=False, **engines) as running:
        asking = asyncio.create_task(running.ask(QUESTION))
        async with asyncio.timeout(60):
            while not len(running.deps.flight):
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (capture,) = await running.captures()
    assert capture.problem == "aborted"
