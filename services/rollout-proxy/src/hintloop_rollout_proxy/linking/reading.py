"""Which reader a capture's API has. A later API adds a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hintloop_rollout_proxy.linking.chat_reading import read_messages
from hintloop_rollout_proxy.linking.events import Reading
from hintloop_rollout_proxy.linking.prompt_reading import read_prompt
from hintloop_rollout_proxy.linking.responses_reading import read_responses

READERS: dict[str, Callable[[bytes], Reading]] = {
    "chat_completions": partial(read_messages, verbatim=True),
    "messages": partial(read_messages, verbatim=False),
    "responses": read_responses,
    "completions": read_prompt,
    "generate": read_prompt,
}
