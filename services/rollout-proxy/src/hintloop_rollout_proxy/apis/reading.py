"""Reads raw requests of any API as chat messages, for records and next states. Lenient: what has no chat form is
left out, and nothing raises. Serving an agent is not done here."""

from __future__ import annotations

import json
from typing import Any

from hintloop_rollout_proxy.apis import messages_input, responses_input

Message = dict[str, Any]


def chat_messages(api: str, request: bytes) -> list[Message]:
    """The request's messages in chat shape.

    Args:
        api: ``chat_completions``, ``completions``, ``generate``, ``responses`` or ``messages``.
        request: the body as the agent sent it. Of a Responses request only what it holds itself is read, not what
            its ``previous_response_id`` names.

    Returns:
        Messages with ``role`` and ``content``; results of tools have role ``tool`` and ``tool_call_id``, failed ones
        of the Messages API ``is_error`` too. A prompt is one user message. Empty when nothing can be read.
    """
    try:
        document = json.loads(request)
    except (ValueError, RecursionError):
        return []
    if not isinstance(document, dict):
        return []
    if api == "messages":
        system = messages_input.read_system(document.get("system"), _leave_out)
        return [*system, *messages_input.read_messages(document.get("messages"), _leave_out)]
    if api == "responses":
        instructions = document.get("instructions")
        system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
        return [*system, *responses_input.read_input(document.get("input"), _leave_out)]
    if api in ("completions", "generate"):
        return _prompt(document.get("prompt" if api == "completions" else "text"))
    found = document.get("messages")
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _prompt(prompt: Any) -> list[Message]:
    """A prompt as the user's words; one given as token ids has none."""
    texts = prompt if isinstance(prompt, list) else [prompt]
    return [{"role": "user", "content": text} for text in texts if isinstance(text, str)]


def _leave_out(what: str) -> None:
    """A lenient reader goes on."""
