"""What token ids read as. A tokenizer is loaded when it is first needed; without one there are ids alone.

Tokens need not hold whole characters. A character of several tokens stands at the last of them, and U+FFFD at those
before; a candidate that is no whole character is written as its bytes, ``<0xE4 0xBD>``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path

import structlog
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

PARTIAL = "\ufffd"


@functools.cache
def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies write every byte as a visible character; this is the way back."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if byte not in set(visible))
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}


class TokenTexts:
    """Texts of token ids by the student's tokenizer."""

    def __init__(self, directory: str) -> None:
        """``directory`` holds ``tokenizer.json``."""
        self._path = Path(directory) / "tokenizer.json" if directory else None
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None
        self._looked = False
        self._single: dict[int, str] = {}

    def of_answer(self, ids: Sequence[int], before: Sequence[int] = ()) -> list[str | None]:
        """The text of each id of an answer that follows the ids ``before``; ``None`` without a tokenizer."""
        tokenizer = self._loaded()
        if tokenizer is None:
            return [None] * len(ids)
        stream = DecodeStream(skip_special_tokens=False)

        def step(token: int) -> str | None:
            nonlocal stream
            try:
                text: str | None = stream.step(tokenizer, token)
            except Exception:  # noqa: BLE001  # the library raises no narrower class
                # Some decoders change what stands before a token, which a stream refuses: it is begun anew behind it.
                stream = DecodeStream(skip_special_tokens=False)
                text = self._alone(tokenizer, token)
            return text

        # Some tokenizers write the first word of a text without its space.
        for token in before[-8:]:
            step(token)
        texts: list[str | None] = []
        for token in ids:
            chunk = step(token)
            if chunk is not None and texts and texts[-1] == PARTIAL:
                # Bytes before it that became no character are shown already.
                chunk = chunk.lstrip(PARTIAL)
            texts.append(chunk or (PARTIAL if chunk is None else ""))
        return texts

    def of_candidate(self, token: int) -> str | None:
        """The text of an id on its own; ``None`` without a tokenizer."""
        tokenizer = self._loaded()
        if tokenizer is None:
            return None
        found = self._single.get(token)
        if found is None:
            found = self._single[token] = self._alone(tokenizer, token)
        return found

    def _alone(self, tokenizer: Tokenizer, token: int) -> str:
        text: str = tokenizer.decode([token], skip_special_tokens=False)
        if text and PARTIAL not in text:
            return text
        name: str | None = tokenizer.id_to_token(token)
        if not name:
            return PARTIAL
        table = _byte_of()
        if all(character in table for character in name):
            return f"<{' '.join(f'0x{table[character]:02X}' for character in name)}>"
        return name

    def _loaded(self) -> Tokenizer | None:
        with self._lock:
            if not self._looked:
                self._looked = True
                self._tokenizer = self._load()
            return self._tokenizer

    def _load(self) -> Tokenizer | None:
        log = structlog.get_logger()
        if self._path is None or not self._path.is_file():
            where = "" if self._path is None else str(self._path)
            log.warning("no tokenizer: tokens are shown by their ids; set model.tokenizer_path", path=where)
            return None
        try:
            return Tokenizer.from_file(str(self._path))
        except Exception as error:  # noqa: BLE001  # the library raises no narrower class
            log.warning("the tokenizer cannot be read: tokens are shown by their ids", detail=str(error))
            return None
