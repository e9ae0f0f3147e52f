"""An agent's chat request as the proxy sees it. Owns reading: session key, sampling, what makes it untrainable.

Only top-level members are parsed; their values stay the JSON text that the agent wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hintloop_contract.messages import Sampling

from hintloop_rollout_proxy.engines.dialect import ABSENT, NULL, Fields
from hintloop_rollout_proxy.errors import BadRequestError

#: Headers that name a session, in order of preference. ``thread-id`` tells sub-agents of one session apart.
SESSION_HEADERS = (b"x-session-id", b"session-id", b"x-session-affinity")
SESSION_MEMBERS = ("session_id", "user", "prompt_cache_key")

_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
_GRAMMARS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "logits_processors",
    "vllm_xargs",
    "custom_logit_processor",
)
_FLOATS = ("temperature", "top_p", "min_p")
_INTEGERS = ("top_k", "max_tokens", "max_completion_tokens", "seed")
#: Parameters for which an engine may take the model's own defaults (`generation_config.json`).
_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_TEXT_PARTS = ("text", "refusal", "input_text", "output_text", "thinking")


class _Part(msgspec.Struct):
    type: str = "text"


class _Content(msgspec.Struct):
    content: str | list[_Part | str] | None = None


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_contents_decoder = msgspec.json.Decoder(list[_Content])


def read_fields(body: bytes) -> Fields | None:
    """The body's top-level members, or ``None`` when it is no JSON object.

    Raises:
        BadRequestError: it nests deeper than can be read.
    """
    try:
        return _fields_decoder.decode(body)
    except msgspec.DecodeError:
        return None
    except RecursionError:
        raise too_deep() from None


def too_deep() -> BadRequestError:
    """The error for JSON that nests deeper than can be read."""
    return BadRequestError("the body nests too deep to be read; send flatter JSON")


def check_numbers(fields: Fields) -> None:
    """Raise ``BadRequestError`` when a number that an engine would read is no double."""
    for name in (*_FLOATS, *_INTEGERS, *_PENALTIES):
        try:
            _number(fields, name)
        except OverflowError:
            digits = len(bytes(fields[name]))
            raise BadRequestError(f"{name} has {digits} digits, which no engine reads; send a smaller number") from None


def value_of(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """A member as Python value; ``None`` when absent or not JSON."""
    raw = bytes(fields.get(name, ABSENT))
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    except RecursionError:
        raise too_deep() from None


def session_key(fields: Fields, headers: Mapping[bytes, bytes]) -> str | None:
    """The explicit session id with its source as prefix, or ``None``."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            thread = headers.get(b"thread-id", b"")
            text = value.decode("latin-1") + ("/" + thread.decode("latin-1") if thread else "")
            return f"header:{name.decode()}:{text}"
    metadata = value_of(fields, "metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("session_id"), str) and metadata["session_id"]:
        return f"body:metadata.session_id:{metadata['session_id']}"
    for member in SESSION_MEMBERS:
        value = value_of(fields, member)
        if isinstance(value, str) and value:
            return f"body:{member}:{value}"
    return None


def _number(fields: Fields, name: str) -> float | None:
    value = value_of(fields, name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(fields: Fields, name: str) -> int | None:
    value = value_of(fields, name)
    whole = isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX
    return value if whole else None


def odd_sampling(fields: Fields) -> str | None:
    """What a sampling parameter says that cannot be recorded as the number it is, or ``None``."""
    for name in (*_FLOATS, *_INTEGERS):
        raw = bytes(fields.get(name, ABSENT))
        if raw in (b"", NULL):
            continue
        found = _number(fields, name) if name in _FLOATS else _integer(fields, name)
        if found is None:
            kind = "a number" if name in _FLOATS else "an integer of 64 bits"
            return f"{name} = {raw[:40].decode(errors='replace')} is not {kind}"
    return None


def read_sampling(fields: Fields) -> Sampling:
    """Sampling parameters of a chat request; what is left out has the API's default, which holds where the engine's
    defaults are known to be neutral (``Exchange.choose``)."""
    temperature, top_p = _number(fields, "temperature"), _number(fields, "top_p")
    top_k = _integer(fields, "top_k")
    limit = _integer(fields, "max_completion_tokens")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k if top_k is not None and top_k > 0 else None,
        min_p=_number(fields, "min_p") or None,
        max_tokens=limit if limit is not None else _integer(fields, "max_tokens"),
        seed=_integer(fields, "seed"),
        constrained=is_constrained(fields),
    )


def leaves_sampling_out(fields: Fields) -> bool:
    """Whether a parameter is left to the engine that shapes the distribution."""
    return any(bytes(fields.get(name, ABSENT)) in (b"", NULL) for name in _DEFAULTED)


def is_constrained(fields: Fields) -> bool:
    """Whether a grammar, forced tool choice, logit bias or penalty shapes the distribution."""
    if any(value_of(fields, name) for name in _GRAMMARS):
        return True
    for name, neutral in _PENALTIES.items():
        number = _number(fields, name)
        if number is not None and number != neutral:
            return True
    if isinstance(value_of(fields, "tool_choice"), dict) or value_of(fields, "tool_choice") == "required":
        return True
    response_format = value_of(fields, "response_format")
    return isinstance(response_format, dict) and response_format.get("type", "text") != "text"


def untrainable(fields: Fields) -> str | None:
    """Why a request is served but never trained, or ``None``."""
    choices = bytes(fields.get("n", ABSENT))
    if choices not in (b"", NULL, b"1"):
        return f"n = {choices[:40].decode(errors='replace')}: only single choices are trained"
    odd = odd_sampling(fields)
    if odd is not None:
        return odd
    if value_of(fields, "echo"):
        return "echo = true: the answer repeats the prompt"
    raw = bytes(fields.get("messages", ABSENT))
    try:
        contents = _contents_decoder.decode(raw) if raw else []
    except msgspec.DecodeError:
        return "messages are not of a known shape"
    except RecursionError:
        raise too_deep() from None
    for message in contents:
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, _Part) and part.type not in _TEXT_PARTS:
                return f"content part of type {part.type!r}: only text is trained"
    return None


def fill_defaults(fields: Fields, temperature: float, top_p: float, max_new_tokens: int) -> None:
    """Fill sampling parameters that the request leaves out (``rollout.apply_sampling_defaults``)."""
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if value_of(fields, name) is None:
            fields[name] = msgspec.Raw(msgspec.json.encode(value))
    if value_of(fields, "max_tokens") is None and value_of(fields, "max_completion_tokens") is None:
        fields["max_tokens"] = msgspec.Raw(msgspec.json.encode(max_new_tokens))
