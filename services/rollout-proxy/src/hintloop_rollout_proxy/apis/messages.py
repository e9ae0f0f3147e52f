"""Anthropic's ``/v1/messages``: what the handler calls.

``/v1/messages/count_tokens`` is not translated: both engines count by the very rendering that they would serve.
"""

from __future__ import annotations

from hintloop_rollout_proxy.apis.identity import new_core
from hintloop_rollout_proxy.apis.messages_answer import MessagesAnswer
from hintloop_rollout_proxy.apis.messages_request import read_request
from hintloop_rollout_proxy.apis.translation import Fields

PATH = "/v1/messages"


def translate(fields: Fields) -> MessagesAnswer:
    """The translation of a request.

    Raises:
        UntranslatableError: it cannot be translated faithfully.
    """
    return MessagesAnswer(read_request(fields), new_core())


class MessagesApi:
    """Translates requests; nothing is remembered, since agents send their whole conversation."""

    async def translate(self, fields: Fields, tenant: str) -> MessagesAnswer:
        """The translation of a request by any ``tenant``; raises like :func:`translate`."""
        return translate(fields)
