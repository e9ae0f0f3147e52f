"""The quick way for a chat stream's commonest chunk: one more piece of text of the first choice, and its one token.

An engine writes such chunks by one template, in which only the text, the token, its number and its log-probability
change. The careful way of `reader` reads a chunk and says what the client sees of it; the template is made of the two.
What follows it to the byte is read by it, several events of a block at once; whatever does not takes the careful way.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from hintloop_rollout_proxy.engines.answer import Choice

DATA, BORDER = b"data: ", b"\n\n"
_DELTA, _TEXT = b'"delta":{', b'"content":'
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
#: What changes, by the key before it. No string of JSON has such a key in it: there, quotes are escaped.
_LOGPROB, _ID = b'"logprob":', b'"token_ids":['
_CHANGING = {
    b'"token":': _STRING,
    b'"bytes":': rb"(?:null|\[[0-9,]*\])",
    _LOGPROB: rb"(-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?)",
    _ID: rb"(0|[1-9][0-9]{0,8})",
}
_KEY = re.compile(b"|".join(map(re.escape, _CHANGING)))
#: An empty piece of text is no common chunk.
_text = re.compile(rb'(?!"")' + _STRING)
_decode_text = msgspec.json.Decoder(str).decode

Values = tuple[bytes, ...]
"""A chunk's text, log-probability and, where the engine sends it, token id, as they are written."""


@lru_cache(32)
def _pattern(literals: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Reads a chunk from its text on; ``literals`` are what stands between the values, each but the last up to a key's
    end. An engine has one such tuple, so hardly anything is ever compiled."""
    parts = [b"(%b)" % _text.pattern]
    for literal in literals[:-1]:
        key = next(key for key in _CHANGING if literal.endswith(key))
        parts += (re.escape(literal), _CHANGING[key])
    return re.compile(b"".join((*parts, re.escape(literals[-1]), re.escape(BORDER))))


def _literals(tail: bytes) -> tuple[bytes, ...] | None:
    """What stands between the values in ``tail``, a chunk behind its text; ``None`` unless they are one token's."""
    found, begin = [], 0
    for key in _KEY.finditer(tail):
        value = re.compile(_CHANGING[key.group()]).match(tail, key.end())
        if value is None:
            return None
        found.append(tail[begin : key.end()])
        begin = value.end()
    read = [key for key in (_LOGPROB, _ID) for literal in found if literal.endswith(key)]
    return (*found, tail[begin:]) if read in ([_LOGPROB], [_LOGPROB, _ID]) else None


class QuickWay:
    """Reads what follows one template. Nobody but us asked for the log-probabilities, and ids if there are any."""

    def __init__(self, choice: Choice, pattern: re.Pattern[bytes], head: bytes, seen_head: bytes, seen_tail: bytes):
        """Add to ``choice``, which has some log-probabilities already, what ``pattern`` finds behind ``head``; the
        client sees a chunk's text between ``seen_head`` and ``seen_tail``."""
        assert choice.logprobs is not None
        self.used = False
        self._texts, self._logprobs = choice.texts, choice.logprobs
        self._ids = choice.response_ids if pattern.groups == 3 else None
        self._match = pattern.match
        self._head, self._head_length = DATA + head, len(DATA + head)
        self._seen_head, self._seen_tail = DATA + seen_head, seen_tail + BORDER

    def feed(self, data: bytes, out: list[bytes]) -> int:
        """Read events at the beginning of ``data``, and add what the client sees of each to ``out``. Where the first
        event begins that does not follow the template."""
        begin, head, length = 0, self._head, self._head_length
        texts, logprobs, ids = self._texts, self._logprobs, self._ids
        while data.startswith(head, begin):
            found = self._match(data, begin + length)
            if found is None:
                break
            values = found.groups()
            try:
                texts.append(_decode_text(values[0]))
            except msgspec.DecodeError:
                break
            logprobs.append(float(values[1]))
            if ids is not None:
                ids.append(int(values[2]))
            out.append(self._seen_head + values[0] + self._seen_tail)
            begin = found.end()
        self.used = self.used or begin > 0
        return begin

    def read(self, data: bytes) -> bytes | None:
        """What the client sees of one chunk; ``None`` when it does not follow the template."""
        out: list[bytes] = []
        self.feed(b"%b%b%b" % (DATA, data, BORDER), out)
        return out[0][len(DATA) : -len(BORDER)] if out else None


def learn(choice: Choice, data: bytes, seen: bytes, read: tuple[object, object, object]) -> QuickWay | None:
    """The way for chunks like ``data``, of which the client saw ``seen``; ``None`` when it has no template.

    ``read`` are the text, log-probability and token id (``None`` where the engine sends them later) that the careful
    way found in it and added to ``choice``: a template by which the same chunk reads otherwise is none.
    """
    begin, seen_begin = (one.find(_TEXT, one.find(_DELTA)) + len(_TEXT) for one in (data, seen))
    text = _text.match(data, begin)
    if text is None or not seen.startswith(text.group(), seen_begin):
        return None
    literals = _literals(data[text.end() :])
    found = None if literals is None else _pattern(literals).fullmatch(data[begin:] + BORDER)
    if literals is None or found is None or _values(found.groups()) != read:
        return None
    head, seen_head = data[:begin], seen[:seen_begin]
    return QuickWay(choice, _pattern(literals), head, seen_head, seen[seen_begin + len(text.group()) :])


def _values(found: Values) -> tuple[object, object, object]:
    text, logprob, *ids = found
    return _decode_text(text), float(logprob), int(ids[0]) if ids else None
