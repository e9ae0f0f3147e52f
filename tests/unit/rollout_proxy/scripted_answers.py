"""Chat answers in the wire shapes of both engines, whole and in chunks, and the vendors' clients over a translation.

The shapes are those of the recordings in ``tests/fixtures/wire``; what small models never say is scripted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
from hintloop_rollout_proxy.apis.translation import Fields, Translation
from hintloop_rollout_proxy.request import read_fields

ENGINES = ("vllm", "sglang")


@dataclass
class Script:
    """What a model says. ``calls`` are ``(id, name, arguments)``."""

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str | None, str, str]] = field(default_factory=list)
    finish: str = "stop"
    stop_string: str | None = None
    cached: int | None = None

    def usage(self, engine: str) -> dict[str, Any]:
        details = None if self.cached is None else {"cached_tokens": self.cached}
        counts = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42, "prompt_tokens_details": details}
        more = {"reasoning_tokens": 5} if engine == "sglang" else {"completion_tokens_details": {"reasoning_tokens": 5}}
        return counts | more

    def whole(self, engine: str) -> bytes:
        """The body of an answer that is not streamed."""
        calls = [
            {"id": call_id, "type": "function", "index": i, "function": {"name": name, "arguments": arguments}}
            for i, (call_id, name, arguments) in enumerate(self.calls)
        ]
        key = "reasoning" if engine == "vllm" else "reasoning_content"
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None, key: self.reasoning or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, **self._end(engine)}
        return json.dumps(
            {**HEAD, "object": "chat.completion", "choices": [choice], "usage": self.usage(engine)}
        ).encode()

    def _end(self, engine: str) -> dict[str, Any]:
        key = "stop_reason" if engine == "vllm" else "matched_stop"
        return {"finish_reason": self.finish, key: self.stop_string if self.stop_string is not None else 2}

    def deltas(self, engine: str) -> list[dict[str, Any]]:
        """The deltas of a stream, some empty, as engines send them."""
        key = "reasoning" if engine == "vllm" else "reasoning_content"
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{key: part} for part in split(self.reasoning)]
        deltas += [{"content": part} for part in split(self.text)] + [{}]
        for index, (call_id, name, arguments) in enumerate(self.calls):
            first: dict[str, Any] = {"id": call_id, "type": "function", "index": index, "function": {"name": name}}
            if engine == "sglang":
                first["function"]["arguments"] = ""
            deltas.append({"content": None, "tool_calls": [first]})
            for part in split(arguments):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        return deltas

    def chunks(self, engine: str, continuous: bool = False) -> list[bytes]:
        """The JSON of a stream's chunks, without the last ``[DONE]``."""
        head = {**HEAD, "object": "chat.completion.chunk"}
        chunks = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in self.deltas(engine)
        ]
        if continuous:
            for chunk in chunks:
                chunk["usage"] = {"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 30}
        chunks.append({**head, "choices": [{"index": 0, "delta": {}, **self._end(engine)}]})
        chunks.append({**head, "choices": [], "usage": self.usage(engine)})
        return [json.dumps(chunk).encode() for chunk in chunks]


HEAD = {"id": "chatcmpl-1", "created": 1795000000, "model": "policy"}


def split(text: str, size: int = 4) -> list[str]:
    """Text in pieces."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def as_fields(body: dict[str, Any]) -> Fields:
    """A request as the handler reads it."""
    fields = read_fields(json.dumps(body).encode())
    assert fields is not None
    return fields


def as_values(fields: Fields) -> dict[str, Any]:
    """Members as Python values."""
    return {name: msgspec.json.decode(bytes(raw)) for name, raw in fields.items()}


def stream_of(translation: Translation, chunks: list[bytes]) -> bytes:
    """The whole stream that an agent sees."""
    return b"".join([translation.begin(), *(translation.event(chunk) for chunk in chunks), translation.end()])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events in a stream; each one's name must be its type."""
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


Translate = Callable[[Fields], Translation]


def answering(translate: Translate, script: Script, engine: str) -> httpx2.MockTransport:
    """A transport that answers a vendor's client by translating what a chat engine says."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        translation = translate(as_fields(json.loads(request.content)))
        if "stream" in translation.fields:
            stream = stream_of(translation, script.chunks(engine))
            return httpx2.Response(200, content=stream, headers={"content-type": "text/event-stream"})
        body = translation.body(script.whole(engine))
        return httpx2.Response(200, content=body, headers={"content-type": "application/json"})

    return httpx2.MockTransport(answer)


def refusing(translate: Translate, status: int, body: bytes) -> httpx2.MockTransport:
    """A transport behind which the engine answers with an error."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        translation = translate(as_fields(json.loads(request.content)))
        content = translation.error(status, body)
        return httpx2.Response(status, content=content, headers={"content-type": "application/json"})

    return httpx2.MockTransport(answer)


def openai_client(transport: httpx2.MockTransport) -> openai.AsyncOpenAI:
    """OpenAI's client over ``transport``."""
    http = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(api_key="k", base_url="http://proxy/v1", http_client=http, max_retries=0)


def anthropic_client(transport: httpx2.MockTransport) -> anthropic.AsyncAnthropic:
    """Anthropic's client over ``transport``."""
    http = httpx2.AsyncClient(transport=transport)
    return anthropic.AsyncAnthropic(api_key="k", base_url="http://proxy", http_client=http, max_retries=0)


PLAIN = Script(text="The capital of France is Paris.")
THINKING = Script(reasoning="France, so Paris.", text="Paris.")
CALLING = Script(
    text="Let me look.",
    calls=[("call_a1", "weather", '{"city": "Paris"}'), ("call_a2", "weather", '{"city": "Zürich"}')],
    finish="tool_calls",
)
EVERYTHING = Script(
    reasoning="Both cities.",
    text="Looking. ☀",
    calls=[("call_a1", "weather", '{"city": "Paris"}'), ("call_a2", "clock", "{}")],
    finish="tool_calls",
    cached=16,
)
SILENT = Script()
CUT = Script(text="The capital of", finish="length")
FORCED = Script(calls=[("call_a1", "weather", '{"city": "Paris"}')], finish="stop")
SCRIPTS = {
    "plain": PLAIN,
    "thinking": THINKING,
    "calling": CALLING,
    "everything": EVERYTHING,
    "silent": SILENT,
    "cut": CUT,
    "forced": FORCED,
}
