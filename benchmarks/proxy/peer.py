"""A proxy in the style of today's peers: FastAPI and httpx; whole replies are read, parsed, recorded and written anew.

It does to a request what OpenClaw-RL's server does (openclaw-rl/openclaw_api_server.py of Gen-Verse/OpenClaw-RL): looks
for key, session and kind of turn, changes a copy of the body, writes to its log, renders prompt and answer by the chat
template, tokenises both anew, keeps the log-probabilities beside them, and gives the whole reply on. With
``--shared-client`` one HTTP client serves all requests; as such proxies are shipped, each request makes its own. A
client that asks for a stream gets the finished answer in events.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from transformers import AutoTokenizer

#: Of the body, and the proxy's alone.
OWN_KEYS = frozenset(("session_id", "session_done", "turn_type"))

log = logging.getLogger("peer")


class Records:
    """What is kept of the newest turns."""

    def __init__(self, model: str) -> None:
        """Tokenise as ``model`` does."""
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._newest: deque[dict[str, Any]] = deque(maxlen=100)

    def add(self, session: str, messages: list[dict[str, Any]], choice: dict[str, Any]) -> None:
        """Keep a turn; its ids come from its text, its log-probabilities are cut or filled up to fit."""
        render = self._tokenizer.apply_chat_template
        prompt = render(messages, tokenize=False, add_generation_prompt=True)
        whole = render([*messages, choice["message"]], tokenize=False, add_generation_prompt=False)
        answer = whole[len(prompt) :] if whole.startswith(prompt) else whole
        prompt_ids, ids = (self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]][: len(ids)]
        logprobs += [0.0] * (len(ids) - len(logprobs))
        self._newest.append({"session": session, "prompt_ids": prompt_ids, "ids": ids, "logprobs": logprobs})
        log.info("session=%s prompt_tokens=%d response_tokens=%d", session, len(prompt_ids), len(ids))


def make_app(engine: str, key: str, records: Records, *, shared: bool) -> FastAPI:
    """The proxy before ``engine``."""
    clients: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if shared:
            clients.append(httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)))  # noqa: S113
        yield

    app = FastAPI(lifespan=lifespan)

    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        url = engine + "/v1/chat/completions"
        if clients:
            response = await clients[0].post(url, json=body)
        else:
            async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113
                response = await client.post(url, json=body)
        response.raise_for_status()
        document: dict[str, Any] = response.json()
        return document

    @app.post("/v1/chat/completions")
    async def chat(
        request: Request,
        authorization: str | None = Header(default=None),
        x_session_id: str | None = Header(default=None),
        x_turn_type: str | None = Header(default=None),
    ) -> Response:
        if authorization != f"Bearer {key}":
            raise HTTPException(status_code=401, detail="invalid api key")
        body = await request.json()
        session = x_session_id or body.get("session_id") or "unknown"
        turn = (x_turn_type or body.get("turn_type") or "side").strip().lower()
        forwarded = {name: value for name, value in body.items() if name not in OWN_KEYS}
        forwarded.update(stream=False, logprobs=True, top_logprobs=1)
        document = await ask(forwarded)
        choice = document["choices"][0]
        log.info("[%s] session=%s messages=%d", turn, session, len(body["messages"]))
        log.info("[%s] session=%s response: %s", turn, session, choice["message"]["content"])
        if turn == "main":
            records.add(session, body["messages"], choice)
        document["session_id"] = session
        if body.get("stream"):
            return StreamingResponse(events(document), media_type="text/event-stream")
        return JSONResponse(document)

    return app


async def events(document: dict[str, Any]) -> AsyncIterator[str]:
    """The finished answer as a stream."""
    choice = document["choices"][0]
    base = {"id": document["id"], "object": "chat.completion.chunk", "created": document["created"]}
    for delta, reason in ((choice["message"], None), ({}, choice["finish_reason"])):
        part = {"index": 0, "delta": delta, "finish_reason": reason}
        yield f"data: {json.dumps({**base, 'model': document['model'], 'choices': [part]})}\n\n"
    yield "data: [DONE]\n\n"


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shared-client", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    app = make_app(options.engine, options.key, Records(options.model), shared=options.shared_client)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="info")


if __name__ == "__main__":
    main()
