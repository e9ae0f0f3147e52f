"""OpenAI's ``/v1/responses``: what the handler calls. Owns references to earlier answers; translating is pure.

A request may name an earlier answer (``previous_response_id``) or one of its items (``item_reference``). What this
proxy answered is looked up in the store; ids that it did not mint are the engine's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hintloop_contract.errors import DependencyError

from hintloop_rollout_proxy.apis.identity import core_of, index_of, new_core
from hintloop_rollout_proxy.apis.response_store import ResponseStore, StoredResponse, pack_list, unpack_list
from hintloop_rollout_proxy.apis.responses_answer import ResponsesAnswer
from hintloop_rollout_proxy.apis.responses_input import Message, read_input
from hintloop_rollout_proxy.apis.responses_request import Asked, read_request
from hintloop_rollout_proxy.apis.translation import Fields, UntranslatableError
from hintloop_rollout_proxy.errors import MemoryAwayError, UnknownItemError, UnknownResponseError

PATH = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a request refers to: the ``messages`` before it, and ``items`` by id."""

    messages: list[Message] = field(default_factory=list)
    items: dict[str, Any] = field(default_factory=dict)


class ResponsesTranslation(ResponsesAnswer):
    """A `translation.Translation` that can be remembered when it has ended."""

    def __init__(self, asked: Asked, core: str) -> None:
        """Answer ``asked`` under ids made from ``core``."""
        super().__init__(asked, core)
        self.core = core

    def to_store(self, tenant: str) -> StoredResponse | None:
        """What to remember of it; ``None`` when the agent wants none, or it failed."""
        if not self._asked.stored or self.status not in ("completed", "incomplete"):
            return None
        answer = read_input(self.output, _leave_out)
        return StoredResponse(
            tenant=tenant, messages=pack_list([*self._asked.messages, *answer]), output=pack_list(self.output)
        )


def translate(fields: Fields, earlier: Earlier | None = None) -> ResponsesTranslation:
    """The translation of a request that refers to ``earlier``.

    Raises:
        UntranslatableError: it cannot be translated faithfully.
    """
    earlier = earlier or Earlier()
    return ResponsesTranslation(read_request(fields, earlier.messages, earlier.items), new_core())


class ResponsesApi:
    """Translates requests that may refer to what the store remembers."""

    def __init__(self, store: ResponseStore) -> None:
        """Look earlier answers up in ``store``."""
        self._store = store

    async def translate(self, fields: Fields, tenant: str) -> ResponsesTranslation:
        """The translation of a request by ``tenant``.

        Raises:
            UntranslatableError: it cannot be translated faithfully, or refers to an answer that is not ours.
            UnknownResponseError: it refers to an answer of ours that is not remembered.
            UnknownItemError: the same of an item.
            MemoryAwayError: the store cannot be asked.
        """
        try:
            earlier = await self._earlier(fields, tenant)
        except DependencyError as error:
            raise MemoryAwayError(f"earlier answers cannot be looked up: {error}; send the whole input") from error
        return translate(fields, earlier)

    async def finish(self, translation: ResponsesTranslation, tenant: str) -> None:
        """Remember an answer that has ended. Raises nothing: an answer that is not remembered was still given."""
        stored = translation.to_store(tenant)
        if stored is not None:
            await self._store.put(translation.core, stored)

    async def _earlier(self, fields: Fields, tenant: str) -> Earlier:
        previous = _read(fields, "previous_response_id")
        messages: list[Message] = []
        if previous is not None:
            stored = await self._find(previous, tenant)
            if stored is None:
                raise UnknownResponseError(f"Previous response with id {previous!r} not found.")
            messages = unpack_list(stored.messages)
        items = {}
        given = _read(fields, "input")
        for item in given if isinstance(given, list) else ():
            if isinstance(item, dict) and item.get("type") in (None, "item_reference") and "role" not in item:
                items[str(item.get("id"))] = await self._item(str(item.get("id")), tenant)
        return Earlier(messages, items)

    async def _item(self, identifier: str, tenant: str) -> Any:
        stored, index = await self._find(identifier, tenant), index_of(identifier)
        output = unpack_list(stored.output) if stored is not None else []
        if index is None or index >= len(output) or output[index].get("id") != identifier:
            raise UnknownItemError(f"Item with id {identifier!r} not found.")
        return output[index]

    async def _find(self, identifier: Any, tenant: str) -> StoredResponse | None:
        core = core_of(identifier) if isinstance(identifier, str) else None
        if core is None:
            raise UntranslatableError(f"{identifier!r:.80} is not of this proxy; the engine may know it")
        return await self._store.get(core, tenant)


def _read(fields: Fields, name: str) -> Any:
    if name not in fields:
        return None
    try:
        return msgspec.json.decode(bytes(fields[name]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UntranslatableError(f"{name} cannot be read: {error}") from error


def _leave_out(what: str) -> None:
    """Our own items all have a chat form."""
    raise AssertionError(what)
