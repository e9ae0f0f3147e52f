"""OpenAI-compatible chat: messages in. Whether such an API can teach at all, and how one that can is asked.

A few chat services echo: asked for ``echo`` and ``logprobs`` they give log-probabilities of the whole conversation.
Such a service renders and encodes by itself, so only one that names the id of every token can be used, and only where
those ids are the hinted prompt's and the response's, one by one. From all others it is clear why they cannot teach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hintloop_teacher.dialects.base import (
    EngineFacts,
    Message,
    NoCandidates,
    Question,
    first_choice,
    listed_model,
    named_id,
)
from hintloop_teacher.errors import MisalignedError, MissingError, RefusedError, UnsupportedError
from hintloop_teacher.forced import RawScores
from hintloop_teacher.http import EngineClient

CHAT_PATH = "/v1/chat/completions"
CANNOT = (
    "it is a chat API whose log-probabilities are of the tokens that it generates itself; a teacher needs those of "
    "given tokens. It can judge, but not teach: set prm.teacher_url to an SGLang or vLLM engine, or to a completions "
    "API with echo"
)
_PROBE: list[Message] = [{"role": "user", "content": "What is rain?"}, {"role": "assistant", "content": "Water."}]


class ChatDialect(NoCandidates):
    """Speaks to a chat API that echoes."""

    name = "chat"
    proves_ids = True
    takes_ids = False
    begins_late = False

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def facts(self, wanted_model: str) -> EngineFacts:
        """Model and limits. Raises ``UnsupportedError`` when the API does not echo."""
        model, length = await listed_model(self._client, wanted_model)
        try:
            entries = read_entries(await self._completed(model, _PROBE, 0, 1.0))
        except RefusedError as error:
            raise UnsupportedError(f"{CANNOT}. It answered to echo: {error}") from error
        if len(entries) <= 1:
            raise UnsupportedError(f"{CANNOT}. Asked to echo, it gave {len(entries)} log-probabilities")
        if any(token is None for token, _, _ in entries):
            raise UnsupportedError(f"{CANNOT}. It echoes, but names no token ids, so what it scored cannot be checked")
        return EngineFacts(self.name, None, model, None if length is None else length - 1)

    async def score(self, model: str, question: Question) -> RawScores:
        """Raw scores of the response, the last of the messages."""
        assert question.messages is not None, "the scorer asks nothing without messages here"
        entries = read_entries(await self._completed(model, question.messages, question.top_k, question.temperature))
        ids, start = question.ids, len(question.prompt_ids)
        echoed = [token for token, _, _ in entries[: len(ids)]]
        if echoed != ids:
            at = next((i for i, pair in enumerate(zip(echoed, ids, strict=False)) if pair[0] != pair[1]), len(echoed))
            raise MisalignedError(
                f"the chat API scored {len(entries)} tokens of its own rendering, {len(ids)} were to be scored; "
                f"they differ first at position {at}"
            )
        scored, rows = entries[start : len(ids)], None
        if question.top_k:
            rows = [
                _row(tops, token, question.top_k)
                for (_, _, tops), token in zip(scored, question.response_ids, strict=True)
            ]
        return RawScores(echoed[start:], [value for _, value, _ in scored], rows, entries[0][1])

    async def echoed(self, model: str, question: str, answer: str) -> list[tuple[int | None, float | None]]:
        """``(id, log-probability)`` of every token of a short conversation."""
        messages: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [entry[:2] for entry in read_entries(await self._completed(model, messages, 0, 1.0))]

    async def encode(self, model: str, text: str) -> list[int] | None:
        """No such route."""
        return None

    async def _completed(
        self, model: str, messages: Sequence[Message], top_k: int, temperature: float
    ) -> dict[str, Any]:
        body = {
            "model": model,
            "messages": list(messages),
            "max_tokens": 1,
            "temperature": temperature,
            "echo": True,
            "logprobs": True,
            "top_logprobs": top_k,
            "add_generation_prompt": False,
            "return_tokens_as_token_ids": True,
        }
        return await self._client.post(CHAT_PATH, body)


Entry = tuple[int | None, float | None, list[tuple[int | None, float | None]]]


def read_entries(body: dict[str, Any]) -> list[Entry]:
    """``(id, log-probability, candidates)`` of every token that the answer has log-probabilities of.

    Raises:
        MissingError: the answer holds no list of them.
    """
    logprobs = first_choice(body).get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise MissingError("the chat API's answer has no logprobs.content")
    return [(_id(item), item.get("logprob"), _tops(item.get("top_logprobs") or [])) for item in content]


def _tops(listed: Any) -> list[tuple[int | None, float | None]]:
    if not isinstance(listed, list) or not all(isinstance(top, dict) for top in listed):
        raise MissingError(f"the chat API's top_logprobs are {listed!r:.60}, not a list of tokens")
    return [(_id(top), top.get("logprob")) for top in listed]


def _id(item: dict[str, Any]) -> int | None:
    number = item.get("token_id")
    return number if type(number) is int else named_id(item.get("token"))


def _row(tops: list[tuple[int | None, float | None]], token: int, top_k: int) -> list[tuple[int, float | None]]:
    extra = token if len(tops) == top_k + 1 else None
    return [(number, value) for number, value in tops if number is not None and number != extra]
