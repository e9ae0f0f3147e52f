"""Engines as they answer over HTTP, in the shapes that were recorded: a fixed distribution over a small vocabulary.

``flaws`` are what a real engine was seen or could be seen to do wrong; each is a name, read where it acts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

#: ASCII.
SIZE = 128


def logprobs_after(previous: int, temperature: float = 1.0) -> np.ndarray:
    """float64 [SIZE], the same for the same token before it."""
    logits = np.asarray([((previous * 31 + token * 17) % 131) / 12 for token in range(SIZE)]) / temperature
    result: np.ndarray = logits - np.log(np.exp(logits).sum())
    return result


def score_of(previous: int, token: int) -> float:
    return float(logprobs_after(previous)[token])


@dataclass
class WireEngine:
    """``kind``: ``vllm``, ``sglang``, ``completions`` or ``chat``. ``max_top_k``: more is refused.

    ``wrong_from``: flaws of the numbers show only in sequences of at least so many tokens, so that a probe passes.
    As a policy engine it renders messages as ``<role>content;`` and adds ``<assistant>``.
    """

    kind: str
    max_top_k: int = 20
    context: int = 512
    wrong_from: int = 0
    url: str = ""
    flaws: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        body = await request.json() if request.can_read_body else {}
        self.bodies.append(body)
        if self.status != 200:
            return web.Response(status=self.status, text="busy")
        if "hangs" in self.flaws:
            await asyncio.sleep(30)
        if "drips" in self.flaws:
            return await self._drip(request)
        if "garbage" in self.flaws:
            return web.Response(text="<html>gateway</html>")
        route = getattr(self, f"_{self.kind}_{request.method.lower()}", None)
        answer = self._common(request.path, body)
        if answer is None and route is not None:
            answer = route(request.path, body)
        if answer is None:
            return web.json_response({"error": "not found"}, status=404)
        if isinstance(answer, web.Response):
            return answer
        return web.Response(text=json.dumps(answer), content_type="application/json")

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(300):
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response

    def _common(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/models":
            row: dict[str, Any] = {"id": "teacher"}
            if self.kind in ("vllm", "sglang") and "no limit" not in self.flaws:
                row["max_model_len"] = self.context
            return {"data": [row]}
        if path in ("/tokenize", "/v1/tokenize") and self.kind in ("vllm", "sglang"):
            shift = 1 if "other tokenizer" in self.flaws else 0
            text = self._rendered(body) if "messages" in body else body["prompt"]
            return {"tokens": [(ord(char) + shift) % SIZE for char in text if ord(char) < SIZE]}
        return None

    def _rendered(self, body: dict[str, Any]) -> str:
        text = rendered(body["messages"], generation=body.get("add_generation_prompt", True))
        return f"<system>new;{text}" if "other template" in self.flaws else text

    def _rows(self, ids: list[int], top_k: int, temperature: float) -> list[Any]:
        """Per token ``None`` or ``(value, [(candidate, value)])``, with the flaws of every engine."""
        if "follows temperature" not in self.flaws:
            temperature = 1.0
        rows: list[Any] = [None]
        for before, token in itertools.pairwise(ids):
            found = logprobs_after(before, temperature)
            worst_first = "least likely candidates" in self.flaws and len(ids) >= self.wrong_from
            best = np.argsort(found if worst_first else -found)[:top_k]
            rows.append((float(found[token]), [(int(k), float(found[k])) for k in best]))
        if len(ids) < self.wrong_from:
            return rows
        if "shifted" in self.flaws:
            rows = [None, *rows[2:], rows[1]]
        if "short" in self.flaws:
            rows = rows[:-1]
        if "holes" in self.flaws:
            rows[-1] = (None, rows[-1][1])
        if "not a number" in self.flaws:
            rows[-1] = (float("nan"), rows[-1][1])
        return rows

    def _refused(self, ids: list[int], top_k: int) -> web.Response | None:
        if len(ids) > self.context:
            message = f"This model's maximum context length is {self.context} tokens, you asked {len(ids)}"
            return web.json_response({"error": {"message": message}}, status=400)
        if top_k > self.max_top_k and "breaks at too many" in self.flaws:
            return web.Response(status=500, text="internal error")
        if top_k > self.max_top_k:
            message = f"Requested prompt logprobs of {top_k}, which is greater than max allowed: {self.max_top_k}"
            return web.json_response({"error": {"message": message}}, status=400)
        return None

    def _vllm_get(self, path: str, body: dict[str, Any]) -> Any:
        return {"version": "0.32.0"} if path == "/version" else None

    def _vllm_post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/inference/v1/generate":
            return self._vllm_generate(body)
        if path != "/v1/completions":
            return None
        ids, top_k = body["prompt"], body["prompt_logprobs"]
        if refused := self._refused(ids, top_k):
            return refused
        choice: dict[str, Any] = {"text": "", "token_ids": [1], "prompt_token_ids": ids, "prompt_logprobs": None}
        if "no logprobs" not in self.flaws:
            choice["prompt_logprobs"] = [
                None if row is None else self._vllm_entry(row, token)
                for row, token in zip(self._rows(ids, top_k, body["temperature"]), ids, strict=False)
            ]
        return {"choices": [choice]}

    def _vllm_entry(self, row: Any, token: int) -> dict[str, Any] | None:
        value, candidates = row
        if value is None and "null entries" in self.flaws:
            return None
        return {str(key): {"logprob": found} for key, found in [(token, value), *candidates]}

    def _vllm_generate(self, body: dict[str, Any]) -> Any:
        sampling = body["sampling_params"]
        if "open" not in self.flaws:
            return web.json_response({"error": "Scale-out endpoints are disabled"}, status=403)
        if "prompt_logprob_token_ids" in sampling:
            return web.json_response({"error": "requires the V2 model runner"}, status=400)
        if sampling["logprobs"] != len(sampling["logprob_token_ids"]):
            return web.json_response({"error": "logprobs must equal len(logprob_token_ids)"}, status=400)
        found = logprobs_after(body["token_ids"][-1])
        listed = [1, *sampling["logprob_token_ids"]][: sampling["logprobs"]]
        tops = [{"token_id": token, "logprob": float(found[token])} for token in listed]
        if "candidates of another place" in self.flaws:
            tops = [{**top, "logprob": top["logprob"] - 1} for top in tops]
        return {"choices": [{"token_ids": [1], "logprobs": {"content": [{**tops[0], "top_logprobs": tops}]}}]}

    def _sglang_get(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/model_info":
            return {"model_path": "/m", "weight_version": "7"}
        return {"version": "0.5.23", "max_req_input_len": self.context} if path == "/server_info" else None

    def _sglang_post(self, path: str, body: dict[str, Any]) -> Any:
        if path != "/generate":
            return None
        ids, top_k, start = body["input_ids"], body.get("top_logprobs_num", 0), body["logprob_start_len"]
        if refused := self._refused(ids, top_k):
            return refused
        if "no logprobs" in self.flaws:
            return {"text": "", "meta_info": {"prompt_tokens": len(ids)}}
        rows = self._rows(ids, top_k, body["sampling_params"]["temperature"])
        entries = [[None if row is None else row[0], token, None] for row, token in zip(rows, ids, strict=False)][
            start:
        ]
        entries[0][0] = None
        tops: list[Any] = [None if row is None else [[value, key, None] for key, value in row[1]] for row in rows]
        meta = {"input_token_logprobs": entries, "input_top_logprobs": [None, *tops[start + 1 :]]}
        if listed := body.get("token_ids_logprob"):
            asked = [[[float(logprobs_after(before)[key]), key, None] for key in listed] for before in ids[start:-1]]
            meta["input_token_ids_logprobs"] = [None, *asked]
        return {"text": "", "meta_info": meta}

    def _completions_post(self, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/completions":
            return None
        if "at least one token" in self.flaws and body["max_tokens"] < 1:
            return web.json_response({"error": "max_tokens must be at least 1"}, status=400)
        if "knows no ids" in self.flaws and "return_tokens_as_token_ids" in body:
            return web.json_response({"error": "Unrecognized request argument"}, status=400)
        ids, top_k = body["prompt"], body["logprobs"]
        if refused := self._refused(ids, top_k):
            return refused
        rows = self._rows(ids, top_k, body["temperature"])
        named = body.get("return_tokens_as_token_ids")

        def name(token: int) -> str:
            return f"token_id:{token}" if named else chr(token)

        tokens = [name(token) for token in ids]
        values = [None if row is None else row[0] for row in rows]
        tops = [None if row is None else {name(k): v for k, v in row[1]} for row in rows]
        if body["max_tokens"]:
            tokens, values, tops = [*tokens, name(1)], [*values, -0.5], [*tops, {}]
        if "covers the generated token" in self.flaws:
            tokens, values, tops = tokens[-1:], [-0.5], tops[-1:]
        logprobs: dict[str, Any] = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}
        if "ids beside" in self.flaws:
            logprobs["token_ids"] = list(ids)
        choice = {"text": "", "logprobs": None if "no logprobs" in self.flaws else logprobs}
        return {"choices": [choice]}

    def _chat_post(self, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/chat/completions":
            return None
        if "knows no echo" in self.flaws and "echo" in body:
            return web.json_response({"error": "Unrecognized request argument: echo"}, status=400)
        ids = chat_ids(body["messages"])
        rows = self._rows(ids, body["top_logprobs"], body["temperature"])
        entries = [
            {
                "token": chr(token) if "names no ids" in self.flaws else f"token_id:{token}",
                "logprob": None if row is None else row[0],
                "top_logprobs": [] if row is None else [{"token": f"token_id:{k}", "logprob": v} for k, v in row[1]],
            }
            for row, token in zip(rows, ids, strict=False)
        ]
        generated = [{"token": "token_id:1", "logprob": -0.5, "top_logprobs": []}]
        content = [*entries, *generated] if "echoes" in self.flaws else generated
        return {"choices": [{"message": {"content": "x"}, "logprobs": {"content": content}}]}


def rendered(messages: list[dict[str, Any]], *, generation: bool = True) -> str:
    """The template of the policy engine."""
    text = "".join(f"<{message['role']}>{message['content']};" for message in messages)
    return text + ("<assistant>" if generation else "")


def chat_ids(messages: list[dict[str, Any]]) -> list[int]:
    """``<content;`` a message, in code points below SIZE."""
    return [ord(char) % SIZE for message in messages for char in f"<{message['content']};"]


@asynccontextmanager
async def served(engine: WireEngine, port: int = 0) -> AsyncIterator[WireEngine]:
    """The engine on loopback."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
