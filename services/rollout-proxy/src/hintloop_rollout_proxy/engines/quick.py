"""The quick way for a chat stream's commonest chunk: one more piece of text of the first choice, and its tokens.

Nothing else decodes here, and whatever does not takes the careful way of `reader`. The quick way is open once the
careful way has seen on another chunk of the same stream that the engine writes its members in the usual order.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from hintloop_rollout_proxy.engines.answer import Choice
from hintloop_rollout_proxy.engines.dialect import NULL
from hintloop_rollout_proxy.engines.hiding import model_members
from hintloop_rollout_proxy.engines.reply import NEXT_MEMBER, TokenIds

_LOGPROBS, _IDS = b'"logprobs":', b'"token_ids":'
_LOGPROBS_LENGTH, _IDS_LENGTH = len(_LOGPROBS), len(_IDS)


class QuickDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A piece of text."""

    content: str
    reasoning_content: None = None


class QuickLogprob(msgspec.Struct, gc=False):
    """One token's."""

    logprob: float | None = None


class QuickLogprobs(msgspec.Struct, gc=False):
    """One for each token of the chunk."""

    content: list[QuickLogprob]


class QuickChoice(msgspec.Struct, gc=False):
    """The first choice, not at its end."""

    delta: QuickDelta
    logprobs: QuickLogprobs
    index: Annotated[int, msgspec.Meta(ge=0, le=0)] = 0
    finish_reason: None = None
    token_ids: TokenIds | None = None
    prompt_token_ids: None = None
    response_token_ids: None = None
    meta_info: None = None


class QuickChunk(msgspec.Struct, gc=False):
    """One choice and nothing beside it."""

    choices: tuple[QuickChoice]
    usage: None = None
    error: None = None
    prompt_token_ids: None = None
    metadata: None = None
    sglext: None = None


_decode = msgspec.json.Decoder(QuickChunk).decode


class QuickWay:
    """Reads chunks of one stream whose log-probabilities, and ids if there are any, nobody but us asked for."""

    def __init__(self, choice: Choice, model: str | None, public_model: str) -> None:
        """Add to ``choice``, which has some text and log-probabilities already; the engine's ``model``
        name is replaced."""
        self._choice = choice
        assert choice.logprobs is not None
        self._logprobs = choice.logprobs
        self._old, self._new = model_members(model or public_model, public_model)

    def read(self, data: bytes) -> bytes:
        """What the client sees of a chunk; raises ``msgspec.DecodeError`` when it has to take the careful way."""
        seen = _decode(data).choices[0]
        choice = self._choice
        choice.message["content"] += seen.delta.content
        for entry in seen.logprobs.content:
            self._logprobs.append(entry.logprob)
        begin = data.find(_LOGPROBS) + _LOGPROBS_LENGTH
        end = data.find(NEXT_MEMBER, begin)
        head = data[:begin].replace(self._old, self._new)
        if seen.token_ids is None:
            return head + NULL + data[end:]
        choice.add_ids(seen.token_ids)
        ids = data.find(_IDS, end) + _IDS_LENGTH
        return head + NULL + data[end:ids] + NULL + data[data.find(b"]", ids) + 1 :]
