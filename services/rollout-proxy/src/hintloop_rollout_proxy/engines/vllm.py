"""vLLM's dialect: ``return_token_ids`` on both kinds of answer, ids beside each choice, prompt ids beside them.

A client that asks for no ids gets their members as null, and in a stream no chunk that would say nothing.
"""

from __future__ import annotations

from functools import cache

import msgspec

from hintloop_rollout_proxy.engines.dialect import (
    CHAT,
    COMPLETIONS,
    TRUE,
    Extension,
    Fields,
    Headers,
    Hidden,
    ask_for_usage,
    given,
    truthy,
    wants_usage,
)


class VllmDialect:
    """How vLLM is asked."""

    name = "vllm"
    tempered_space = "processed"

    def adapted(self, model: str, adapter: str) -> str:
        """An adapter is a model to vLLM."""
        return adapter

    def extend(self, api: str, fields: Fields, headers: Headers) -> Extension | None:
        """Ask for token ids, log-probabilities and, in a stream, usage."""
        if api not in (CHAT, COMPLETIONS):
            return None
        chat, ids = api == CHAT, truthy(fields, "return_token_ids")
        logprobs = truthy(fields, "logprobs") if chat else given(fields, "logprobs")
        usage = wants_usage(fields)
        fields["return_token_ids"] = TRUE
        if chat:
            fields["logprobs"] = TRUE
            # An explicit null would switch the log-probabilities off again.
            if "top_logprobs" in fields and not given(fields, "top_logprobs"):
                del fields["top_logprobs"]
        elif not logprobs:
            fields["logprobs"] = msgspec.Raw(b"0")
        if truthy(fields, "stream"):
            ask_for_usage(fields)
        return _extension(chat, ids, logprobs, usage)


@cache
def _extension(chat: bool, ids: bool, logprobs: bool, usage: bool) -> Extension:
    """What to hide from a client, by what it asked for itself."""
    beside, inside = (("prompt_token_ids",), ("token_ids",)) if chat else ((), ("token_ids", "prompt_token_ids"))
    hidden = Hidden(
        logprobs=not logprobs,
        nulled=True,
        choice=() if ids else inside,
        reply=() if ids else beside,
        usage=not usage,
        stamped=not usage,
        bare_deltas=not logprobs and not ids,
    )
    return Extension(hidden)
