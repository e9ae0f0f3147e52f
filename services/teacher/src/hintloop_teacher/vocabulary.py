"""What the student and the teacher must share: vocabulary and special ids. Reads the student's directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hintloop_contract.errors import ConfigError
from tokenizers import Tokenizer

#: Text of many kinds, so that two different vocabularies encode it differently.
PROBE_TEXT = (
    "Hello, world! 1234567890 3.14159 — naïve café, Übergröße, ¿qué?\n\n\tdef f(x):\n        return x ** 2  # ok\n"
    '{"key": [1, 2.5e-3, null]} <b>tag</b> https://example.org/a?b=c&d=%20 '
    "中文字符 日本語 한국어 русский العربية 🙂🚀"
)


#: Tokens on which two tokenizers are compared: all of the first, which byte-pair vocabularies learn first because text
#: holds them most often, and some from all over the rest.
NUM_FREQUENT, NUM_SPREAD = 4096, 256
#: Of them a text: with what stands between them they fit into any engine's context.
TOKENS_A_PROBE = 1024


@dataclass(frozen=True)
class Vocabulary:
    """``size``: ids at or above it are in no tokenizer. ``num_ids``: rows of the student's embedding, which may be
    padded."""

    size: int
    num_ids: int
    tokenizer: Tokenizer
    special_text: str

    def encode(self, text: str) -> list[int]:
        """Ids of bare text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def control_tokens(self) -> dict[int, str]:
        """Added tokens that are special or written like markup; not those that merely abbreviate plain text."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        return {index: token.content for index, token in added if _is_control(token.content.strip(), token.special)}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over every token with its id, and over which of them are special."""
        tokens = sorted(self.tokenizer.get_vocab(with_added_tokens=True).items())
        special = sorted((i, token.content) for i, token in self.tokenizer.get_added_tokens_decoder().items())
        return hashlib.sha256(json.dumps([tokens, special]).encode()).hexdigest()[:16]

    @cached_property
    def probes(self) -> list[str]:
        """Texts on which two tokenizers are compared: plain text, every special token in a row, and tokens that can be
        printed, a line each."""
        spread = range(NUM_FREQUENT, self.size, max(1, (self.size - NUM_FREQUENT) // NUM_SPREAD))
        tokens = [
            token for token in (*range(min(NUM_FREQUENT, self.size)), *spread) if token not in self.control_tokens
        ]
        lines = [
            line
            for line in self.tokenizer.decode_batch([[token] for token in tokens], skip_special_tokens=False)
            if line.isprintable()
        ]
        pieces = ["\n".join(lines[at : at + TOKENS_A_PROBE]) for at in range(0, len(lines), TOKENS_A_PROBE)]
        return [PROBE_TEXT, self.special_text, *pieces]


def _is_control(content: str, special: bool) -> bool:
    return len(content) > 1 and (special or (content[0] + content[-1]) in ("<>", "[]"))


def read_vocabulary(model_path: str, tokenizer_path: str, key: str = "model.student_model_path") -> Vocabulary:
    """The vocabulary of a model's directory and its tokenizer's.

    Raises:
        ConfigError: a file is missing or has no vocabulary.
    """
    if not model_path:
        raise ConfigError(f"{key} is empty; the teacher needs the student's config.json to know its vocabulary")
    config = _read_json(Path(model_path) / "config.json", key)
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    if not isinstance(size, int):
        raise ConfigError(f"{key} {model_path!r}: config.json has no vocab_size")
    tokenizer = read_tokenizer(tokenizer_path, "model.tokenizer_path")
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    special = "".join(token.content for _, token in added[:64])
    return Vocabulary(min(size, largest + 1), size, tokenizer, special)


def read_tokenizer(path: str, key: str) -> Tokenizer:
    """The ``tokenizer.json`` in a directory. Raises ``ConfigError`` when there is none."""
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{key} {path!r} holds no tokenizer.json; save the tokenizer in its fast form there")
    return Tokenizer.from_file(str(file))


def same_tokenizer(a: Tokenizer, b: Tokenizer) -> bool:
    """Whether two tokenizers have the same tokens with the same ids, special ones included."""
    vocabularies = [tokenizer.get_vocab(with_added_tokens=True) for tokenizer in (a, b)]
    specials = [
        {index: token.content for index, token in tokenizer.get_added_tokens_decoder().items()} for tokenizer in (a, b)
    ]
    return vocabularies[0] == vocabularies[1] and specials[0] == specials[1]


def _read_json(file: Path, key: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} {str(file.parent)!r}: config.json cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{key} {str(file.parent)!r}: config.json is no JSON object")
    return value
