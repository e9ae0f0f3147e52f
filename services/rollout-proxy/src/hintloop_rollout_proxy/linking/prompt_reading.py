"""Reads requests whose prompt is one text or one list of ids: completions and SGLang's native ``/generate``."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from hintloop_rollout_proxy.linking.events import Reading
from hintloop_rollout_proxy.linking.identity import read_body_ids
from hintloop_rollout_proxy.linking.normal_form import digest_of

IDS_MARK = b"\xff"
"""First byte of a sequence of ids; each id follows as little-endian int32. A sequence of text is its UTF-8, which has
no such byte."""


class _Request(msgspec.Struct):
    prompt: Any = None
    text: Any = None
    input_ids: Any = None
    metadata: Any = None
    user: Any = None
    session_id: Any = None
    max_tokens: Any = None


_decoder = msgspec.json.Decoder(_Request)


def read_prompt(request: bytes) -> Reading:
    """The reading of a body with a prompt.

    Raises:
        msgspec.DecodeError: the body is no object.
        ValueError: it has no single prompt.
    """
    document = _decoder.decode(request)
    prompt = next((p for p in (document.prompt, document.input_ids, document.text) if p is not None), None)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    sequence = sequence_of(prompt)

    def after(start: int) -> bytes:
        """What follows the first ``start`` bytes. A remainder of ids alone has no words: the array is empty."""
        rest = "" if sequence.startswith(IDS_MARK) else sequence[start:].decode("utf-8", "replace")
        return msgspec.json.encode([{"role": "user", "content": rest}] if rest.strip() else [])

    return Reading(
        events=(),
        prefixes=(digest_of(sequence),),
        hashes=array("q"),
        blocks=(),
        tools=frozenset(),
        system=b"",
        after=after,
        ids=read_body_ids(msgspec.structs.asdict(document)),
        max_tokens=document.max_tokens if isinstance(document.max_tokens, int) else None,
        sequence=sequence,
    )


def sequence_of(prompt: Any) -> bytes:
    """A prompt as bytes that can be compared.

    Raises:
        ValueError: it is neither a text nor a list of ids, or several.
    """
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt):
        try:
            return IDS_MARK + array("i", prompt).tobytes()
        except OverflowError:
            raise ValueError("a prompt's id is no 32-bit integer") from None
    raise ValueError("the prompt is neither one text nor one list of token ids")
