import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from hintloop.demo.greedy import GreedyCheck
from hintloop.demo.preference import Answer
from hintloop.demo.prompts import Question, wordings
from hintloop.demo.user import Conversations, Ledger

RAIN = Question("What is rain?", "rain")


@dataclass
class FakeEngine:
    """Answers chat completions with set texts; keeps what it was sent."""

    replies: list[str] = field(default_factory=lambda: ["Rain is falling water."])
    finish_reason: str | None = "stop"
    status: int = 200
    streamed_ids: list[int] = field(default_factory=lambda: [5, 6, 7])
    own_ids: list[int] = field(default_factory=lambda: [5, 6, 7])
    sglang: bool = False
    requests: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((body, {name.lower(): value for name, value in request.headers.items()}))
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        if not body.get("stream"):
            key = "response_token_ids" if self.sglang else "token_ids"
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, key: self.own_ids}
            return web.json_response({"choices": [choice], "usage": {"completion_tokens": len(self.own_ids)}})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in self.chunks(self.replies[(len(self.requests) - 1) % len(self.replies)]):
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def chunks(self, text: str) -> list[dict[str, Any]]:
        ids = {} if self.sglang else {"token_ids": self.streamed_ids}
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **ids}
        last = {"index": 0, "delta": {}, "finish_reason": self.finish_reason}
        usage: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": len(self.streamed_ids)}}
        if self.sglang:
            usage["sglext"] = {"output_ids": [self.streamed_ids]}
        return [
            {"id": "1", "object": "chat.completion.chunk", **part}
            for part in ({"choices": [choice]}, {"choices": [last]}, usage)
        ]


@asynccontextmanager
async def talking(engine: FakeEngine) -> AsyncIterator[tuple[Conversations, str]]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{port}"
    user = Conversations(f"{url}/v1", "policy", wordings(), random.Random(0), Ledger())
    try:
        yield user, url
    finally:
        await user.close()
        await runner.cleanup()


async def test_a_conversation_asks_first_and_complains_after() -> None:
    engine = FakeEngine(["Rain is water. It falls. It is wet.", "Sorry."])
    async with talking(engine) as (user, _):
        answer = await user.converse(RAIN)
    assert answer == Answer("What is rain?", "rain", "Rain is water. It falls. It is wet.", "stop")
    first, second = (body for body, _ in engine.requests)
    assert first["messages"] == [{"role": "user", "content": "What is rain?"}]
    assert (first["temperature"], first["max_tokens"], first["stream"]) == (0.7, 48, True)
    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": answer.text}]
    assert second["messages"][2]["content"] in wordings().complaints
    assert not any(name.startswith("x-turn") for _, headers in engine.requests for name in headers)


async def test_a_satisfied_user_says_so() -> None:
    engine = FakeEngine()
    async with talking(engine) as (user, _):
        await user.converse(RAIN)
    assert engine.requests[1][0]["messages"][2]["content"] in wordings().confirmations


async def test_held_out_questions_are_asked_beside_the_main_line_without_a_hint() -> None:
    engine = FakeEngine()
    async with talking(engine) as (user, _):
        answers = await user.evaluate([RAIN] * 5, concurrency=2)
    assert len(answers) == 5
    for body, headers in engine.requests:
        assert body["messages"] == [{"role": "user", "content": "What is rain?"}]
        assert headers["x-turn-type"] == "side"


async def test_refused_requests_are_counted_once_and_never_retried() -> None:
    engine = FakeEngine(status=503)
    async with talking(engine) as (user, _):
        assert await user.converse_all([RAIN, RAIN]) == []
        assert (user.ledger.requests, user.ledger.refused, len(engine.requests)) == (2, 2, 2)
        assert "503" in user.ledger.reasons[0]


async def test_a_stream_that_is_cut_counts_as_refused() -> None:
    engine = FakeEngine(finish_reason=None)
    async with talking(engine) as (user, _):
        assert await user.ask(RAIN) is None
        assert user.ledger.refused == 1


async def test_an_absent_server_counts_as_refused() -> None:
    async with talking(FakeEngine()) as (user, _):
        pass
    late = Conversations(str(user.client.base_url), "policy", wordings(), random.Random(0), Ledger())
    assert await late.ask(RAIN) is None
    assert (late.ledger.requests, late.ledger.refused) == (1, 1)
    await late.close()


async def greedy(engine: FakeEngine) -> GreedyCheck:
    async with talking(engine) as (user, url):
        check = GreedyCheck(user.client, url, "sglang" if engine.sglang else "vllm", "policy", user.ledger)
        await check.compare("What is rain?")
        return check


async def test_greedy_answers_with_equal_ids_agree_on_both_engines() -> None:
    for sglang in (False, True):
        engine = FakeEngine(sglang=sglang)
        check = await greedy(engine)
        assert check.mismatches == []
        assert [body["temperature"] for body, _ in engine.requests] == [0.0, 0.0]
        assert [bool(body.get("stream")) for body, _ in engine.requests] == [True, False]


async def test_greedy_answers_that_differ_or_have_no_ids_are_mismatches() -> None:
    assert len((await greedy(FakeEngine(own_ids=[5, 6, 8]))).mismatches) == 1
    assert len((await greedy(FakeEngine(own_ids=[5, 6]))).mismatches) == 1
    assert len((await greedy(FakeEngine(own_ids=[], streamed_ids=[]))).mismatches) == 1


async def test_wordings_vary_with_the_seed_and_repeat_with_it() -> None:
    answer = Answer("What is rain?", "rain", "Rain", "stop")

    def said(seed: int) -> list[str]:
        user = Conversations("http://127.0.0.1:1/v1", "policy", wordings(), random.Random(seed), Ledger())
        return [user.feedback(answer) for _ in range(20)]

    first, again, other = await asyncio.gather(*(asyncio.to_thread(said, seed) for seed in (1, 1, 2)))
    assert first == again != other
    assert len(set(first)) > 2
