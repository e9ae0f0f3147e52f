"""SGLang's dialect: body fields ask for ids on a whole answer; on a stream, headers ask for a late ``sglext`` chunk."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hintloop_contract.messages import VersionSpan

from hintloop_rollout_proxy.engines.dialect import TRUE, Fields, Wishes, ask_for_usage, stream_options, truthy
from hintloop_rollout_proxy.engines.reader import ChatReader, Choice, Reply, read_ids

INPUT_HEADER = "x-sglext-return-input-ids"
OUTPUT_HEADER = "x-sglext-return-output-ids"
INPUT_FIELD = "return_input_ids_in_sglext"
OUTPUT_FIELD = "return_output_ids_in_sglext"


class WeightSpan(msgspec.Struct):
    """Tokens ``[start, end)`` made by ``version``, as SGLang writes it."""

    version: str | int
    start: int
    end: int


class Metadata(msgspec.Struct):
    """``metadata`` of a whole answer, which SGLang gives unasked."""

    weight_versions: list[WeightSpan] | None = None


class Sglext(msgspec.Struct):
    """The late chunk of a stream: prompt ids, and ids per choice."""

    input_ids: list[int | list[int]] | None = None
    output_ids: list[list[int]] | None = None


_metadata_decoder = msgspec.json.Decoder(Metadata | None)
_sglext_decoder = msgspec.json.Decoder(Sglext | None)


def spans_of(raw: msgspec.Raw) -> tuple[VersionSpan, ...]:
    """Version spans of a ``metadata`` member; none when a version is not one of ours (an integer)."""
    metadata = _metadata_decoder.decode(bytes(raw)) if bytes(raw) else None
    if metadata is None or not metadata.weight_versions:
        return ()
    spans = []
    for span in metadata.weight_versions:
        try:
            spans.append(VersionSpan(version=int(span.version), start=span.start, end=span.end))
        except ValueError:
            return ()
    return tuple(spans)


def prompt_ids_of(input_ids: list[int | list[int]]) -> list[int]:
    """The prompt's ids: the list itself, or the first of the lists in it. Raises ``ValueError`` when it is mixed."""
    lists = [entry for entry in input_ids if isinstance(entry, list)]
    if len(lists) == len(input_ids):
        return lists[0]
    if lists:
        raise ValueError(f"sglext.input_ids mixes {len(lists)} lists among {len(input_ids)} entries")
    return [entry for entry in input_ids if isinstance(entry, int)]


class SglangDialect:
    """How SGLang is asked."""

    name = "sglang"
    tempered_space = "after_temperature"

    def wishes(self, fields: Fields, headers: Mapping[bytes, bytes]) -> Wishes:
        """What the client asked for itself."""

        def asked(field: str, header: str) -> bool:
            value = headers.get(header.encode(), b"").strip().lower()
            return truthy(fields, field) or value in (b"1", b"true", b"yes", b"on")

        return Wishes(
            stream=truthy(fields, "stream"),
            logprobs=truthy(fields, "logprobs"),
            token_ids=truthy(fields, "return_token_ids"),
            prompt_token_ids=truthy(fields, "return_prompt_token_ids"),
            meta_info=truthy(fields, "return_meta_info"),
            usage=truthy(stream_options(fields), "include_usage"),
            sglext_input=asked(INPUT_FIELD, INPUT_HEADER),
            sglext_output=asked(OUTPUT_FIELD, OUTPUT_HEADER),
        )

    def rewrite(self, fields: Fields, wishes: Wishes) -> dict[str, str]:
        """Ask for log-probabilities and, each in its own way, for the ids of a whole answer or of a stream."""
        fields["logprobs"] = TRUE
        if not wishes.stream:
            for name in ("return_token_ids", "return_prompt_token_ids", "return_meta_info"):
                fields[name] = TRUE
            return {}
        ask_for_usage(fields)
        return {INPUT_HEADER: "1", OUTPUT_HEADER: "1"}

    def reader(self, wishes: Wishes, public_model: str) -> ChatReader:
        """A reader for one answer."""
        asked = {
            "response_token_ids": wishes.token_ids,
            "prompt_token_ids": wishes.prompt_token_ids,
            "meta_info": wishes.meta_info,
        }
        sglext = wishes.sglext_input or wishes.sglext_output
        return SglangReader(
            wishes,
            public_model,
            hidden_choice=tuple(name for name, want in asked.items() if not want),
            hidden=() if sglext else ("sglext",),
        )


class SglangReader(ChatReader):
    """Reads one answer of SGLang."""

    def take_ids(self, reply: Reply, choice: Choice | None) -> None:
        """Ids stand in choice 0 of a whole answer, or in the late chunk of a stream."""
        answer = self.answer
        if bytes(reply.metadata):
            answer.spans = spans_of(reply.metadata) or answer.spans
        if choice is not None:
            answer.response_ids = answer.response_ids or read_ids(choice.response_token_ids)
            answer.prompt_ids = answer.prompt_ids or read_ids(choice.prompt_token_ids)
        sglext = _sglext_decoder.decode(bytes(reply.sglext)) if bytes(reply.sglext) else None
        if sglext is None:
            return
        if sglext.output_ids is not None:
            answer.response_ids = sglext.output_ids[0] if sglext.output_ids else []
        if sglext.input_ids:
            answer.prompt_ids = prompt_ids_of(sglext.input_ids)
