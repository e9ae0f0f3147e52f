"""An agent's request as the proxy sees it. Owns reading: session key, sampling, what makes it untrainable.

Only top-level members are parsed, and of those only the small ones that matter here; the rest stays the JSON text
that the agent wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hintloop_contract.messages import Sampling

from hintloop_rollout_proxy.engines.dialect import CHAT, COMPLETIONS, GENERATE, Fields
from hintloop_rollout_proxy.errors import BadRequestError

#: Headers that name a session, in order of preference. ``thread-id`` tells sub-agents of one session apart.
SESSION_HEADERS = (b"x-session-id", b"session-id", b"x-session-affinity")
SESSION_MEMBERS = ("session_id", "user", "prompt_cache_key")

_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
_GRAMMARS = frozenset(
    (
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
        "custom_params",
        "watermark",
        "use_beam_search",
    )
)
_FLOATS = ("temperature", "top_p", "min_p")
_INTEGERS = ("top_k", "max_tokens", "max_completion_tokens", "seed")
#: Parameters for which an engine may take the model's own defaults (`generation_config.json`).
_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: ``sampling_params`` of ``/generate`` by the name that the other APIs have for them.
_GENERATE_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_SHAPING = frozenset((*_PENALTIES, *_FLOATS, *_INTEGERS, *_GRAMMARS, "tool_choice", "response_format", "n"))
_CHAT_READ = _SHAPING | {"echo"}
_COMPLETION_READ = _SHAPING | {"echo", "best_of"}
_CHOOSING = frozenset(("n", "best_of", "use_beam_search"))
_RECORDED = frozenset((*_FLOATS, *_INTEGERS))
_CONSTRAINING = frozenset((*_PENALTIES, *_GRAMMARS, "tool_choice", "response_format"))
_NUMBERS = frozenset((*_FLOATS, *_INTEGERS, *_PENALTIES))
_SESSION_READ = frozenset(("metadata", *SESSION_MEMBERS))
#: Digits of the largest double.
MAX_DIGITS = 308
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: No engine makes more choices of one request.
MAX_CHOICES = 1024
_TEXT_PARTS = ("text", "refusal", "input_text", "output_text", "thinking")
#: Members of ``/generate`` that bring in something other than text or ids.
_OTHER_INPUTS = ("input_embeds", "image_data", "video_data", "audio_data")


class _Part(msgspec.Struct):
    type: str = "text"


class _Content(msgspec.Struct):
    content: str | list[_Part | str] | None = None


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_contents_decoder = msgspec.json.Decoder(list[_Content])
_decoder = msgspec.json.Decoder()

Values = Mapping[str, Any]
"""Members as Python values."""


class Reading(msgspec.Struct, frozen=True):
    """What is read of one request before it is asked."""

    sampling: Sampling
    leaves_sampling_out: bool
    """Whether a parameter is left to the engine that shapes the distribution."""
    num_choices: int = 1
    untrainable: str | None = None
    """Why it is served but never trained."""


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
    for name in fields.keys() & _NUMBERS:
        digits = len(bytes(fields[name]))
        # Fewer digits are a double, or no number at all.
        if digits > MAX_DIGITS and isinstance(value_of(fields, name), int):
            raise BadRequestError(f"{name} has {digits} digits, which no engine reads; send a smaller number")


def value_of(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """A member as Python value; ``None`` when absent or not JSON."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    except RecursionError:
        raise too_deep() from None


def values_of(fields: Mapping[str, msgspec.Raw], names: frozenset[str]) -> dict[str, Any]:
    """Those of ``names`` that are there and not null; one that cannot be read is its own text."""
    values = {}
    for name in fields.keys() & names:
        raw = fields[name]
        try:
            value = _decoder.decode(raw)
        except msgspec.DecodeError:
            value = bytes(raw).decode(errors="replace")
        except RecursionError:
            raise too_deep() from None
        if value is not None:
            values[name] = value
    return values


def session_key(fields: Fields, headers: Mapping[bytes, bytes]) -> str | None:
    """The explicit session id with its source as prefix, or ``None``."""
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            thread = headers.get(b"thread-id", b"")
            text = value.decode("latin-1") + ("/" + thread.decode("latin-1") if thread else "")
            return f"header:{name.decode()}:{text}"
    values = values_of(fields, _SESSION_READ)
    metadata = values.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("session_id"), str) and metadata["session_id"]:
        return f"body:metadata.session_id:{metadata['session_id']}"
    for member in SESSION_MEMBERS:
        named = values.get(member)
        if isinstance(named, str) and named:
            return f"body:{member}:{named}"
    return None


def read_request(api: str, fields: Fields) -> Reading:
    """Everything that is read of a request to an engine API (``CHAT``, ``COMPLETIONS``, ``GENERATE``)."""
    if api == GENERATE:
        return _read_generate(fields)
    values = values_of(fields, _CHAT_READ if api == CHAT else _COMPLETION_READ)
    odd = _odd_sampling(values) or _odd_choices(values)
    untrainable = odd or (_untrainable_chat if api == CHAT else _untrainable_completion)(fields, values)
    return _reading(values, untrainable)


def _read_generate(fields: Fields) -> Reading:
    params = value_of(fields, "sampling_params")
    given: dict[str, Any] = params if isinstance(params, dict) else {}
    values = {_GENERATE_NAMES.get(name, name): value for name, value in given.items() if value is not None}
    untrainable = _odd_sampling(values) or _odd_choices(values) or _untrainable_generate(fields, params)
    if value_of(fields, "custom_logit_processor"):
        values["custom_logit_processor"] = True
    return _reading(values, untrainable)


def _reading(values: Values, untrainable: str | None) -> Reading:
    choices = values.get("n")
    return Reading(
        sampling=_sampling(values),
        leaves_sampling_out=any(name not in values for name in _DEFAULTED),
        num_choices=choices if untrainable is None and isinstance(choices, int) else 1,
        untrainable=untrainable,
    )


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX
    return value if whole else None


def _odd_sampling(values: Values) -> str | None:
    """What a sampling parameter says that cannot be recorded as the number it is, or ``None``."""
    for name in values.keys() & _RECORDED:
        value = values[name]
        if (_float(value) if name in _FLOATS else _integer(value)) is None:
            kind = "a number" if name in _FLOATS else "an integer of 64 bits"
            return f"{name} = {_shown(value)} is not {kind}"
    return None


def _odd_choices(values: Values) -> str | None:
    if values.keys().isdisjoint(_CHOOSING):
        return None
    choices = values.get("n", 1)
    if isinstance(choices, bool) or not isinstance(choices, int) or not 1 <= choices <= MAX_CHOICES:
        return f"n = {_shown(choices)} is no number of choices"
    best_of = values.get("best_of", choices)
    if best_of != choices:
        return f"best_of = {_shown(best_of)}: only some of the answers are seen"
    return "use_beam_search = true: no answer is a sample" if values.get("use_beam_search") else None


def _shown(value: Any) -> str:
    return msgspec.json.encode(value)[:40].decode(errors="replace")


def _sampling(values: Values) -> Sampling:
    """Sampling parameters; what is left out has the API's default, which holds where the engine's defaults are known
    to be neutral (``Exchange.choose``)."""
    temperature, top_p = _float(values.get("temperature")), _float(values.get("top_p"))
    top_k = _integer(values.get("top_k"))
    limit = _integer(values.get("max_completion_tokens"))
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=top_k if top_k is not None and top_k > 0 else None,
        min_p=_float(values.get("min_p")) or None,
        max_tokens=limit if limit is not None else _integer(values.get("max_tokens")),
        seed=_integer(values.get("seed")),
        constrained=_is_constrained(values),
    )


def _is_constrained(values: Values) -> bool:
    """Whether a grammar, forced tool choice, logit bias or penalty shapes the distribution."""
    if values.keys().isdisjoint(_CONSTRAINING):
        return False
    if any(values[name] for name in values.keys() & _GRAMMARS):
        return True
    for name in values.keys() & _PENALTIES.keys():
        number = _float(values[name])
        if number is not None and number != _PENALTIES[name]:
            return True
    tool_choice = values.get("tool_choice")
    if isinstance(tool_choice, dict) or tool_choice == "required":
        return True
    response_format = values.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type", "text") != "text"


def _untrainable_chat(fields: Fields, values: Values) -> str | None:
    if values.get("echo"):
        return "echo = true: the answer repeats the prompt"
    raw = fields.get("messages")
    try:
        contents = _contents_decoder.decode(raw) if raw is not None else []
    except msgspec.DecodeError:
        return "messages are not of a known shape"
    except RecursionError:
        raise too_deep() from None
    for message in contents:
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, _Part) and part.type not in _TEXT_PARTS:
                return f"content part of type {part.type!r}: only text is trained"
    return None


def _untrainable_completion(fields: Fields, values: Values) -> str | None:
    if values.get("echo"):
        return "echo = true: the answer repeats the prompt"
    if value_of(fields, "prompt_embeds"):
        return "prompt_embeds: only text and ids are trained"
    return None if _is_one_prompt(fields, "prompt") else "prompt is no single prompt: only one is trained"


def _untrainable_generate(fields: Fields, params: Any) -> str | None:
    if isinstance(params, list):
        return "sampling_params is a list: only single requests are trained"
    for name in _OTHER_INPUTS:
        if value_of(fields, name):
            return f"{name}: only text and ids are trained"
    name = "input_ids" if value_of(fields, "text") is None else "text"
    return None if _is_one_prompt(fields, name) else f"{name} is no single prompt: only one is trained"


def _is_one_prompt(fields: Fields, name: str) -> bool:
    raw = bytes(fields.get(name, b""))
    if raw.startswith(b'"'):
        return True
    prompt = value_of(fields, name)
    return isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)


def fill_defaults(api: str, fields: Fields, temperature: float, top_p: float, max_new_tokens: int) -> None:
    """Fill sampling parameters that the request leaves out (``rollout.apply_sampling_defaults``)."""
    defaults = {"temperature": temperature, "top_p": top_p}
    if api == GENERATE:
        params = value_of(fields, "sampling_params")
        if isinstance(params, dict) or params is None:
            given = {name: value for name, value in (params or {}).items() if value is not None}
            filled = {**defaults, "max_new_tokens": max_new_tokens, **given}
            fields["sampling_params"] = msgspec.Raw(msgspec.json.encode(filled))
        return
    for name, value in defaults.items():
        if value_of(fields, name) is None:
            fields[name] = msgspec.Raw(msgspec.json.encode(value))
    if value_of(fields, "max_tokens") is None and (
        api == COMPLETIONS or value_of(fields, "max_completion_tokens") is None
    ):
        fields["max_tokens"] = msgspec.Raw(msgspec.json.encode(max_new_tokens))
