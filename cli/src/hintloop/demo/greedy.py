"""The greedy check: the same prompt through the proxy, streaming, and at the engine itself, not streaming.

Without sampling both must give the very same token ids; then what the proxy captures is what the engine made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import openai

from hintloop.demo.user import MAX_TOKENS, Ledger
from hintloop.local.engines import EngineName


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids of one answer and the number of tokens that the engine counted."""

    token_ids: list[int]
    completion_tokens: int | None


class GreedyCheck:
    """Compares the two ways to the same answer."""

    def __init__(self, client: openai.AsyncOpenAI, engine_url: str, engine: EngineName, model: str, ledger: Ledger):
        self.client = client
        self.engine_url = engine_url
        self.engine = engine
        self.model = model
        self.ledger = ledger
        self.mismatches: list[str] = []

    async def compare(self, prompt: str) -> bool:
        """Ask both ways; a difference is kept in ``mismatches``. False when it differs or was refused."""
        streamed = await self._through_proxy(prompt)
        if streamed is None:
            return False
        direct = await self._at_engine(prompt)
        if streamed.token_ids and streamed == direct and len(streamed.token_ids) == streamed.completion_tokens:
            return True
        self.mismatches.append(f"{prompt!r}: through the proxy {streamed}, at the engine {direct}")
        return False

    async def _through_proxy(self, prompt: str) -> Ids | None:
        wanted = "return_token_ids" if self.engine == "vllm" else "return_output_ids_in_sglext"
        self.ledger.requests += 1
        token_ids: list[int] = []
        completion_tokens: int | None = None
        try:
            stream = await self.client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": prompt}],
                stream=True,
                stream_options={"include_usage": True},
                temperature=0.0,
                max_tokens=MAX_TOKENS,
                extra_headers={"X-Turn-Type": "side"},
                extra_body={wanted: True},
            )
            async for chunk in stream:
                token_ids.extend(_chunk_ids(chunk.model_dump()))
                if chunk.usage is not None:
                    completion_tokens = chunk.usage.completion_tokens
        except openai.APIError as error:
            self.ledger.refuse(error)
            return None
        return Ids(token_ids, completion_tokens)

    async def _at_engine(self, prompt: str) -> Ids:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0,
            "max_tokens": MAX_TOKENS,
            "return_token_ids": True,
        }
        timeout = aiohttp.ClientTimeout(total=180.0)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.post(f"{self.engine_url}/v1/chat/completions", json=body) as response,
        ):
            answer: dict[str, Any] = await response.json()
        choice = answer["choices"][0]
        token_ids = choice.get("token_ids") or choice.get("response_token_ids") or []
        return Ids(list(token_ids), answer["usage"]["completion_tokens"])


def _chunk_ids(chunk: dict[str, Any]) -> list[int]:
    """Token ids that one streamed chunk carries, in either engine's way."""
    ids: list[int] = []
    for choice in chunk.get("choices") or []:
        ids.extend(choice.get("token_ids") or [])
    outputs = (chunk.get("sglext") or {}).get("output_ids") or []
    if outputs:
        ids.extend(outputs[0])
    return ids
