"""vLLM's dialect: ``return_token_ids`` on both kinds of answer, ids beside each choice, prompt ids beside them."""

from __future__ import annotations

from collections.abc import Mapping

from hintloop_rollout_proxy.engines.dialect import (
    ABSENT,
    NULL,
    TRUE,
    Fields,
    Wishes,
    ask_for_usage,
    stream_options,
    truthy,
)
from hintloop_rollout_proxy.engines.reader import ChatReader, Choice, Reply, read_ids


class VllmDialect:
    """How vLLM is asked."""

    name = "vllm"
    tempered_space = "processed"

    def wishes(self, fields: Fields, headers: Mapping[bytes, bytes]) -> Wishes:
        """What the client asked for itself."""
        ids = truthy(fields, "return_token_ids")
        return Wishes(
            stream=truthy(fields, "stream"),
            logprobs=truthy(fields, "logprobs"),
            token_ids=ids,
            prompt_token_ids=ids,
            usage=truthy(stream_options(fields), "include_usage"),
        )

    def rewrite(self, fields: Fields, wishes: Wishes) -> dict[str, str]:
        """Ask for token ids, log-probabilities and, in a stream, usage."""
        fields["return_token_ids"] = TRUE
        fields["logprobs"] = TRUE
        # An explicit null would switch the log-probabilities off again.
        if bytes(fields.get("top_logprobs", ABSENT)).strip() == NULL:
            del fields["top_logprobs"]
        if wishes.stream:
            ask_for_usage(fields)
        return {}

    def reader(self, wishes: Wishes, public_model: str) -> ChatReader:
        """A reader for one answer."""
        return VllmReader(
            wishes,
            public_model,
            hidden_choice=() if wishes.token_ids else ("token_ids",),
            hidden=() if wishes.prompt_token_ids else ("prompt_token_ids",),
        )


class VllmReader(ChatReader):
    """Reads one answer of vLLM."""

    def take_ids(self, reply: Reply, choice: Choice | None) -> None:
        """Ids stand on every chunk that carries tokens, prompt ids on the first; no spans are reported on chat."""
        answer = self.answer
        if answer.prompt_ids is None:
            answer.prompt_ids = read_ids(reply.prompt_token_ids)
        ids = None if choice is None else read_ids(choice.token_ids)
        if ids is not None:
            if answer.response_ids is None:
                answer.response_ids = ids
            else:
                answer.response_ids.extend(ids)
