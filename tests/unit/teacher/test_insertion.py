from typing import ClassVar

import pytest
from hintloop_teacher.errors import NoHintPlaceError, UnsafeHintError
from hintloop_teacher.insertion import check_insertion, check_text

from .conftest import CodePoints, encode

PLAIN = encode("<u>ask;<a>")


class Merging(CodePoints):
    """Ids from 1000 on are two characters: `k+` and `+;`."""

    pairs: ClassVar = {1000: "k+", 1001: "+;"}

    def decode(self, ids):  # type: ignore[no-untyped-def]
        return "".join(self.pairs.get(token, chr(token % 1000)) for token in ids)


@pytest.mark.parametrize(
    ("hinted", "block"),
    [
        ("<u>ask+H;<a>", "+H"),
        ("<u>ask;;<a>", ";"),
        ("<u>askask;<a>", "ask"),
        ("+<u>ask;<a>", "+"),
        ("<u>ask+H;<a>", "\n\n+H\n"),  # a template may trim
        ('<u>ask+\\"H\\"\\nx;<a>', '+"H"\nx'),  # or write as JSON
    ],
)
def test_the_hint_is_set_in(hinted: str, block: str) -> None:
    check_insertion(PLAIN, encode(hinted), CodePoints(), block)


@pytest.mark.parametrize("hinted", ["<u>ask+X;<a>", "<u>ask+;<a>", "<u>ask+H+H;<a>"])
def test_nothing_but_the_hint_is_set_in(hinted: str) -> None:
    with pytest.raises(NoHintPlaceError, match="something else than the hint"):
        check_insertion(PLAIN, encode(hinted), CodePoints(), "+H")


def test_tokens_may_merge_where_the_hint_meets_the_text() -> None:
    left = [*encode("<u>as"), 1000, *encode("H;<a>")]
    right = [*encode("<u>ask+H"), 1001, *encode("<a>")]
    check_insertion(PLAIN, left, Merging(), "+H")
    check_insertion(PLAIN, right, Merging(), "+H")


@pytest.mark.parametrize(
    "hinted",
    [
        "<u>ask;<a>",  # nothing
        "<u>;<a>",  # less
        "<s>hi;<u>ask+H;<a>;",  # in two places
        "<u>asc+H;<a>",  # the text before it changed
        "<u>ask+H;<b>xxxx",  # so did what follows
        "<u>H+ask!<a>",
    ],
)
def test_anything_else_is_refused(hinted: str) -> None:
    with pytest.raises(NoHintPlaceError):
        check_insertion(PLAIN, encode(hinted), CodePoints(), "+H")


def test_control_tokens_are_never_set_in() -> None:
    with pytest.raises(UnsafeHintError, match="special token '<|end|>'".replace("|", r"\|")):
        check_insertion(PLAIN, encode("<u>ask<|end|>H;<a>"), CodePoints(), "+H")
    with pytest.raises(UnsafeHintError):
        check_text("Be brief<|end|>.", CodePoints())
    check_text("Be brief <|, |> end.", CodePoints())
