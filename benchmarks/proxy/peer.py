"""A proxy in the style of today's peers: FastAPI and httpx; whole replies are read, parsed, recorded and written anew.

With ``--shared-client`` one HTTP client serves all requests; as such proxies are shipped, each request makes its own.
A client that asks for a stream gets the finished answer in events.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

HIDDEN = ("token_ids",)


def make_app(engine: str, shared: bool) -> FastAPI:
    """The proxy before ``engine``."""
    records: deque[dict[str, Any]] = deque(maxlen=100)
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
    async def chat(request: Request) -> Response:
        body = await request.json()
        streamed = body.pop("stream", False)
        body.update(logprobs=True, return_token_ids=True)
        document = await ask(body)
        choice = document["choices"][0]
        records.append(
            {
                "prompt_ids": document.get("prompt_token_ids"),
                "response_ids": choice.get("token_ids"),
                "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
            }
        )
        choice["logprobs"] = None
        document.pop("prompt_token_ids", None)
        for name in HIDDEN:
            choice.pop(name, None)
        if streamed:
            return StreamingResponse(events(document), media_type="text/event-stream")
        return JSONResponse(document)

    return app


async def events(document: dict[str, Any]) -> AsyncIterator[str]:
    """The finished answer as a stream."""
    choice = document["choices"][0]
    delta = {"index": 0, "delta": choice["message"], "finish_reason": choice["finish_reason"]}
    yield f"data: {json.dumps({**document, 'object': 'chat.completion.chunk', 'choices': [delta]})}\n\n"
    yield "data: [DONE]\n\n"


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--shared-client", action="store_true")
    options = parser.parse_args()
    app = make_app(options.engine, options.shared_client)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
