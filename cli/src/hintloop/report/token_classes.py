"""What kind of text a token is, so that a run's advantages can be told apart by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from hintloop.errors import CommandError

ENDS, BREAK, NUMBER, PUNCTUATION, WORD_START, WORD_PART, OTHER = (
    "end of turn, control",
    "line break, blanks",
    "number",
    "punctuation, brackets",
    "beginning of a word",
    "rest of a word",
    "other",
)
CLASSES = (WORD_START, WORD_PART, NUMBER, PUNCTUATION, BREAK, ENDS, OTHER)


#: What pieces of a vocabulary write for the blank before a word: decoded alone, a token may lose it.
BLANKS = ("▁", "Ġ")


def class_of(text: str, *, control: bool) -> str:
    """The class of a token's text, as it is decoded on its own with the blank before it."""
    if control:
        return ENDS
    if not text.strip():
        return BREAK
    bare = text.strip()
    if any(character.isdigit() for character in bare):
        return NUMBER
    if re.fullmatch(r"[^\w\s]+", bare):
        return PUNCTUATION
    if any(character.isalpha() for character in bare):
        return WORD_START if text[0].isspace() or bare[0].isupper() else WORD_PART
    return OTHER


def classifier(tokenizer_dir: Path) -> Callable[[int], str]:
    """The class of a token id under the run's tokenizer; every id is ``other`` where there is none.

    Raises:
        CommandError: it cannot be read.
    """
    file = tokenizer_dir / "tokenizer.json"
    if not file.is_file():
        return lambda _: OTHER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CommandError(f"{file} is no tokenizer: {error}; give the student's directory by --tokenizer") from error
    control = {token_id for token_id, added in tokenizer.get_added_tokens_decoder().items() if added.special}

    def found(token_id: int) -> str:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if (tokenizer.id_to_token(token_id) or "").startswith(BLANKS) and not text[:1].isspace():
            text = f" {text}"
        return class_of(text, control=token_id in control)

    return found


def classes_of(ids: Sequence[int], classify: Callable[[int], str]) -> list[str]:
    """The class of each id; every distinct one is decoded once."""
    known = {token_id: classify(token_id) for token_id in set(ids)}
    return [known[token_id] for token_id in ids]
