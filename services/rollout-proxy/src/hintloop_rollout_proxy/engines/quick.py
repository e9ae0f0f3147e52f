"""The quick way for a chat stream's commonest chunk: one more piece of text of the first choice, and its one token.

An engine writes such chunks by one template, in which only the text, the token, its number and its log-probability
change. The careful way of `reader` reads a chunk and says what the client sees of it; the template is made of the two.
What follows it to the byte is read by it, several events of a block at once; whatever does not takes the careful way.
"""

from __future__ import annotations

import re
from collections import deque

import msgspec

from hintloop_rollout_proxy.engines.answer import Choice

DATA, BORDER = b"data: ", b"\n\n"
_DELTA, _TEXT = b'"delta":{', b'"content":'
_ONCE = (b'"choices":', b'"delta":', b'"logprobs":')
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
#: What changes, by the key before it. No string of JSON has such a key in it: there, quotes are escaped.
_LOGPROB, _ID = b'"logprob":', b'"token_ids":['
_CHANGING = {
    b'"token":': _STRING,
    b'"bytes":': rb"(?:null|\[[0-9,]*\])",
    # Numbers that a double and an id surely hold, and all of their digits.
    _LOGPROB: rb"(-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?)(?=[,}])",
    _ID: rb"(0|[1-9][0-9]{0,8})(?=\])",
}
_VALUES = {key: re.compile(value) for key, value in _CHANGING.items()}
_KEY = re.compile(b"|".join(map(re.escape, _CHANGING)))
#: An empty piece of text is no common chunk.
_text = re.compile(rb'(?!"")' + _STRING)
_decode_text = msgspec.json.Decoder(str).decode

Values = tuple[bytes, ...]
"""A chunk's text, log-probability and, where the engine sends it, token id, as they are written."""


#: The last templates' patterns. An engine has one, so hardly anything is ever compiled.
_patterns: deque[re.Pattern[bytes]] = deque(maxlen=8)


def _pattern_of(chunk: bytes, text_length: int) -> re.Pattern[bytes] | None:
    """What reads ``chunk``, given from its text on, and its like; ``None`` where there is no such template."""
    for pattern in _patterns:
        if pattern.fullmatch(chunk):
            return pattern
    literals = _literals(chunk[text_length:])
    if literals is None:
        return None
    parts = [b"(%b)" % _text.pattern]
    for literal in literals[:-1]:
        key = next(key for key in _CHANGING if literal.endswith(key))
        parts += (re.escape(literal), _CHANGING[key])
    return re.compile(b"".join((*parts, re.escape(literals[-1]))))


def _literals(tail: bytes) -> tuple[bytes, ...] | None:
    """What stands between the values in ``tail``, a chunk behind its text, each but the last up to a key's end;
    ``None`` unless the values are one token's."""
    found, begin = [], 0
    for key in _KEY.finditer(tail):
        value = _VALUES[key.group()].match(tail, key.end())
        if value is None:
            return None
        found.append(tail[begin : key.end()])
        begin = value.end()
    read = [key for literal in found for key in (_LOGPROB, _ID) if literal.endswith(key)]
    return (*found, tail[begin:]) if read in ([_LOGPROB], [_LOGPROB, _ID]) else None


class QuickWay:
    """Reads what follows one template. Nobody but us asked for the log-probabilities, and ids if there are any."""

    def __init__(self, choice: Choice, pattern: re.Pattern[bytes], head: bytes, seen_head: bytes, seen_tail: bytes):
        """Add to ``choice``, which has some log-probabilities already, what ``pattern`` finds behind ``head``; the
        client sees a chunk's text between ``seen_head`` and ``seen_tail``."""
        self.used = False
        self._choice, self._has_ids = choice, pattern.groups == 3
        self._match = pattern.match
        self._head, self._head_length = DATA + head, len(DATA + head)
        self._seen_head, self._seen_tail = DATA + seen_head, seen_tail + BORDER

    def feed(self, data: bytes, begin: int, out: list[bytes]) -> int:
        """Read the events in ``data`` from ``begin`` on, and add what the client sees of each to ``out``. Where the
        first one begins that is not whole or does not follow the template."""
        first, head, length = begin, self._head, self._head_length
        texts, logprobs = self._choice.texts, self._choice.logprobs
        ids = self._choice.response_ids if self._has_ids else None
        assert logprobs is not None
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
        self.used = self.used or begin > first
        return begin

    def read(self, data: bytes) -> bytes | None:
        """What the client sees of one chunk; ``None`` when it does not follow the template."""
        out: list[bytes] = []
        self.feed(b"%b%b%b" % (DATA, data, BORDER), 0, out)
        return out[0][len(DATA) : -len(BORDER)] if out else None


def learn(choice: Choice, data: bytes, seen: bytes, read: tuple[object, object, object]) -> QuickWay | None:
    """The way for chunks like ``data``, of which the client saw ``seen``; ``None`` when it has no template.

    ``read`` are the text, log-probability and token id (``None`` where the engine sends them later) that the careful
    way found in it and added to ``choice``: a template by which the same chunk reads otherwise is none.
    """
    begin, seen_begin = (one.find(_TEXT, one.find(_DELTA)) + len(_TEXT) for one in (data, seen))
    text, chunk = _text.match(data, begin), data[begin:] + BORDER
    if text is None or not seen.startswith(text.group(), seen_begin) or not _single(data, text.end()):
        return None
    pattern = _pattern_of(chunk, text.end() - begin)
    found = None if pattern is None else pattern.fullmatch(chunk)
    if pattern is None or found is None or _values(found.groups()) != read:
        return None
    seen_tail = seen[seen_begin + len(text.group()) :]
    if _KEY.search(seen_tail):
        # The client would see for ever what changes.
        return None
    if pattern not in _patterns:
        _patterns.appendleft(pattern)
    return QuickWay(choice, pattern, data[:begin], seen[:seen_begin], seen_tail)


def _single(data: bytes, text_end: int) -> bool:
    """Whether no member that is read is there twice: of two, the careful way takes the last."""
    return all(data.count(key) == 1 for key in _ONCE) and _TEXT + b'"' not in data[text_end:]


def _values(found: Values) -> tuple[object, object, object]:
    text, logprob, *ids = found
    return _decode_text(text), float(logprob), int(ids[0]) if ids else None
