"""Hinted prompts as the policy engine renders them, trusted only where it renders the captured prompt as captured.

Owns the null-hint check and the way out when it fails: the hint is spliced into the captured ids. No response is
ever encoded here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hintloop_contract.errors import DependencyError

from hintloop_teacher.concurrency import all_of
from hintloop_teacher.errors import NoHintPlaceError, RecordError, RefusedError, RenderMismatchError
from hintloop_teacher.hints import HintPlace, Message, hinted_index, with_hint
from hintloop_teacher.insertion import Tokens, check_ids, check_insertion, check_text
from hintloop_teacher.policy_engines import DEPENDENCY, PolicyEngines
from hintloop_teacher.splice import Markers, end_of_last, find_markers

TOKENIZE_PATHS = {"vllm": "/tokenize", "sglang": "/v1/tokenize"}

#: Contents with different last tokens, so that what they share is the template's.
_PROBES = ("xylo 7", "quay 4")


@dataclass(frozen=True, slots=True)
class Request:
    """What the engine was asked: where, and everything that shapes the rendering."""

    engine: str
    engine_url: str
    messages: list[Message]
    tools: list[Any] | None
    options: dict[str, Any]
    captured_ids: list[int]


def read_request(
    engine: str, engine_url: str, messages: bytes, tools: bytes | None, rendering: bytes, captured_ids: list[int]
) -> Request:
    """A request from a turn's record.

    Raises:
        RecordError: a field is no JSON of the right kind, or the engine is unknown.
    """
    if engine not in TOKENIZE_PATHS:
        raise RecordError(f"engine {engine!r} cannot render; known are {', '.join(TOKENIZE_PATHS)}")
    try:
        read = (json.loads(messages), json.loads(tools) if tools else None, json.loads(rendering))
    except ValueError as error:
        raise RecordError(f"messages, tools or rendering is not JSON: {error}") from error
    if not isinstance(read[0], list) or not isinstance(read[1], list | None) or not isinstance(read[2], dict):
        raise RecordError("messages and tools must be JSON arrays, rendering a JSON object")
    return Request(engine, engine_url, read[0], read[1], read[2], captured_ids)


@dataclass(frozen=True, slots=True)
class Hinted:
    """A hinted prompt: its ids, and the messages that the engine rendered to them (``None`` when it was spliced)."""

    ids: list[int]
    messages: list[Message] | None


class Renderer:
    """Renders by the configured policy engines, preferring the one where a turn was served."""

    def __init__(self, engines: PolicyEngines, tokens: Tokens, place: HintPlace = "last_user") -> None:
        """``tokens``: the vocabulary of the student, whose control tokens no hint may hold. ``place``: of the hint."""
        self.engines = engines
        self._tokens = tokens
        self._place = place

    async def hinted(self, request: Request, block: str) -> Hinted:
        """The prompt with ``block`` in its place.

        Raises:
            UnsafeHintError: the block holds a control token.
            RenderMismatchError: the engine renders otherwise than captured, and no splice is possible.
            NoHintPlaceError: there is no unambiguous place.
            DependencyError: no engine is there.
        """
        check_text(block, self._tokens)
        return await self.engines.on_one(
            request.engine, request.engine_url, lambda url: self._hinted(replace(request, engine_url=url), block)
        )

    async def hinted_ids(self, request: Request, block: str) -> list[int]:
        """The ids of :meth:`hinted`."""
        return (await self.hinted(request, block)).ids

    async def _hinted(self, request: Request, block: str) -> Hinted:
        if not request.messages:
            return Hinted(await self._spliced(request, block), None)
        messages = with_hint(request.messages, block, self._place)
        try:
            plain_ids, hinted_ids = await all_of(self.render(request, request.messages), self.render(request, messages))
        except RefusedError as error:
            return Hinted(await self._spliced_or(request, block, str(error)), None)
        if plain_ids != request.captured_ids:
            mismatch = _difference(plain_ids, request.captured_ids)
            return Hinted(await self._spliced_or(request, block, mismatch), None)
        check_insertion(plain_ids, hinted_ids, self._tokens, block)
        return Hinted(hinted_ids, messages)

    async def render(self, request: Request, messages: list[Message], *, generation: bool = True) -> list[int]:
        """Ids of ``messages`` with the request's tools and options."""
        body = _render_body(request, messages, generation)
        return _tokens(await self._post(request, body))

    async def encode(self, request: Request, text: str) -> list[int]:
        """Ids of bare text."""
        return _tokens(await self._post(request, {"prompt": text, "add_special_tokens": False}))

    async def ready(self) -> bool:
        """Whether at least one configured engine answers."""
        return await self.engines.ready()

    async def close(self) -> None:
        """Close the connections."""
        await self.engines.close()

    async def _post(self, request: Request, body: dict[str, Any]) -> Any:
        return await self.engines.client(request.engine_url).post(TOKENIZE_PATHS[request.engine], body)

    async def _spliced_or(self, request: Request, block: str, mismatch: str) -> list[int]:
        try:
            return await self._spliced(request, block)
        except (NoHintPlaceError, RefusedError) as error:
            raise RenderMismatchError(f"{mismatch}; and no splice: {error}") from error

    async def _spliced(self, request: Request, block: str) -> list[int]:
        # Where only ids are known, the place is the last user block whatever is configured: it alone is findable.
        role = request.messages[hinted_index(request.messages, self._place)]["role"] if request.messages else "user"
        try:
            markers = await self._markers(request, role)
            block_ids = await self.encode(request, block)
        except RefusedError as error:
            raise NoHintPlaceError(f"the engine does not render its own template: {error}") from error
        check_ids(block_ids, self._tokens)
        roles = [message.get("role") for message in request.messages]
        place = end_of_last(
            request.captured_ids,
            markers,
            # Templates set the results of one round of tools together, so that their number cannot be counted.
            num_blocks=roles.count("user") if roles and role == "user" else None,
            is_last=bool(roles) and roles[-1] == role,
        )
        return [*request.captured_ids[:place], *block_ids, *request.captured_ids[place:]]

    async def _markers(self, request: Request, role: str) -> Markers:
        one, other, later, later_other = _probe_conversations(role)
        found = await all_of(
            self.render(request, one),
            self.render(request, other),
            self.render(request, one, generation=False),
            self.render(request, other, generation=False),
            self.render(request, later),
            self.render(request, later_other),
        )
        return find_markers((found[0], found[1]), (found[2], found[3]), (found[4], found[5]))


def _probe_conversations(role: str) -> list[list[Message]]:
    """Two short conversations that end with ``role`` and differ in its text alone; and two with other words before."""
    history: list[Message] = [{"role": "user", "content": "ok 1"}, {"role": "assistant", "content": "ok"}]
    begun: list[Message] = []
    if role != "user":
        call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        begun = [{"role": "user", "content": "so 2"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    named = {} if role == "user" else {"tool_call_id": "call_0", "name": "look"}
    said: list[list[Message]] = [[{"role": role, "content": text, **named}] for text in _PROBES]
    return [before + spoken for before in (begun, history) for spoken in said]


def _render_body(request: Request, messages: list[Message], generation: bool) -> dict[str, Any]:
    options = dict(request.options)
    body: dict[str, Any] = {"messages": messages}
    if request.tools is not None:
        body["tools"] = request.tools
    if request.engine == "vllm":
        _spell_reasoning(options)
        body["add_generation_prompt"] = generation
    elif not generation:
        # Left out, SGLang renders exactly as for a chat completion.
        body["add_generation_prompt"] = False
    return {**options, **body}


def _spell_reasoning(options: dict[str, Any]) -> None:
    """vLLM's chat route turns ``reasoning_effort`` into template arguments; its tokenize route has no such field."""
    effort = options.pop("reasoning_effort", None)
    if effort is None:
        return
    kwargs = dict(options.get("chat_template_kwargs") or {})
    kwargs.setdefault("enable_thinking", effort != "none")
    kwargs["reasoning_effort"] = effort
    options["chat_template_kwargs"] = kwargs


def _tokens(body: Any) -> list[int]:
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise DependencyError(DEPENDENCY, f"its tokenize route gave no list of ids: {str(body)[:200]}")
    return tokens


def _difference(rendered: list[int], captured: list[int]) -> str:
    where = next((i for i, (a, b) in enumerate(zip(rendered, captured, strict=False)) if a != b), None)
    at = f"first at position {where}" if where is not None else "one continues the other"
    return f"without a hint the engine renders {len(rendered)} ids, captured are {len(captured)}; they differ {at}"
