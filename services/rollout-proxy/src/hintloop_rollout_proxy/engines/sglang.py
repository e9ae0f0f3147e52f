"""SGLang's dialect: body fields ask for ids; on a chat stream, headers ask for a late ``sglext`` chunk."""

from __future__ import annotations

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

#: Members of ``sglext`` with the field and the header that ask for each.
SGLEXT = {
    "input_ids": ("return_input_ids_in_sglext", b"x-sglext-return-input-ids"),
    "output_ids": ("return_output_ids_in_sglext", b"x-sglext-return-output-ids"),
}
SGLEXT_HEADERS = tuple((header.decode(), "1") for _, header in SGLEXT.values())
SWITCHED_ON = (b"1", b"true", b"yes", b"on")
#: Where ids of a whole chat answer stand, and what asks for each.
CHAT_MEMBERS = {
    "response_token_ids": ("return_token_ids",),
    "prompt_token_ids": ("return_prompt_token_ids", "return_token_ids"),
    "meta_info": ("return_meta_info",),
}
CHAT_FIELDS = tuple(fields[0] for fields in CHAT_MEMBERS.values())


class SglangDialect:
    """How SGLang is asked."""

    name = "sglang"
    tempered_space = "after_temperature"

    def adapted(self, model: str, adapter: str) -> str:
        """SGLang takes both names in one."""
        return f"{model}:{adapter}"

    def extend(self, api: str, fields: Fields, headers: Headers) -> Extension | None:
        """Ask for log-probabilities and, each in its own way, for the ids of a whole answer or of a stream."""
        if api == CHAT:
            return self._chat(fields, headers)
        return self._completion(fields) if api == COMPLETIONS else self._generate(fields)

    def _chat(self, fields: Fields, headers: Headers) -> Extension:
        logprobs, usage = truthy(fields, "logprobs"), wants_usage(fields)
        unwanted = tuple(
            member
            for member, (field, header) in SGLEXT.items()
            if not truthy(fields, field) and headers.get(header, b"").strip().lower() not in SWITCHED_ON
        )
        unasked = tuple(
            member for member, asking in CHAT_MEMBERS.items() if not any(truthy(fields, field) for field in asking)
        )
        fields["logprobs"] = TRUE
        stream = truthy(fields, "stream")
        if stream:
            ask_for_usage(fields)
        else:
            for name in CHAT_FIELDS:
                fields[name] = TRUE
        hidden = Hidden(
            logprobs=not logprobs,
            choice=unasked,
            reply=("sglext",) if len(unwanted) == len(SGLEXT) else (),
            sglext=unwanted,
            usage=not usage,
            bare_deltas=not logprobs,
        )
        return Extension(hidden, SGLEXT_HEADERS if stream else ())

    def _completion(self, fields: Fields) -> Extension:
        ids, logprobs, usage = truthy(fields, "return_token_ids"), given(fields, "logprobs"), wants_usage(fields)
        fields["return_token_ids"] = TRUE
        if not logprobs:
            fields["logprobs"] = msgspec.Raw(b"0")
        if truthy(fields, "stream"):
            ask_for_usage(fields)
        choice = () if ids else ("token_ids", "prompt_token_ids")
        return Extension(Hidden(logprobs=not logprobs, choice=choice, usage=not usage))

    def _generate(self, fields: Fields) -> Extension:
        logprobs, ids = truthy(fields, "return_logprob"), truthy(fields, "return_prompt_token_ids")
        fields["return_logprob"] = TRUE
        fields["return_prompt_token_ids"] = TRUE
        return Extension(Hidden(logprobs=not logprobs, reply=() if ids else ("prompt_token_ids",)))
