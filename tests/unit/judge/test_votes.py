from typing import Any

import pytest
from hintloop_judge.prompts import Question
from hintloop_judge.votes import parse_vote


def completion(text: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}]}


def vote(question: Question, text: str | None, *, schema: bool = False, finish_reason: str = "stop") -> Any:
    return parse_vote(question, completion(text, finish_reason), schema=schema)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("\\boxed{+1}", 1),
        ("The user thanked. \\boxed{ 1 }", 1),
        ("\\boxed{0}", 0),
        ("\\boxed{-1}", -1),
        ("\\boxed {\u22121}", -1),
        ("\\boxed{-1}, so again: \\boxed{-1}", -1),
        ("<think>maybe \\boxed{1}</think>\\boxed{-1}", -1),
    ],
)
def test_boxed_scores(text: str, score: int) -> None:
    assert vote("score", text).score == score


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It was bad.", "no \\boxed{}"),
        ("\\boxed{5}", "none of +1, 0, -1"),
        ("\\boxed{1} or \\boxed{-1}", "disagree"),
        ("\\boxed{1} \\boxed{bad}", "none of +1, 0, -1"),
        ("", "empty"),
        (None, "empty"),
        ("<think>\\boxed{1}", "does not end"),
    ],
)
def test_unreadable_scores_fail_and_are_not_neutral(text: str | None, reason: str) -> None:
    found = vote("score", text)
    assert found.score is None
    assert reason in found.failed


def test_a_vote_cut_by_the_limit_fails() -> None:
    assert "hint_max_tokens" in vote("score", "\\boxed{1}", finish_reason="length").failed
    assert "hint_max_tokens" in vote("hint", "[NO_HINT]", finish_reason="length").failed


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[HINT_START]Be brief.[HINT_END]", "Be brief."),
        ("Sure:\n[HINT_START] Use\n  French. [HINT_END] done", "Use French."),
        ("[HINT_START]A.[HINT_END] [HINT_START]A.[HINT_END]", "A."),
        ("[NO_HINT]", None),
        ("[HINT_START]  [HINT_END]", None),
    ],
)
def test_hints(text: str, hint: str | None) -> None:
    found = vote("hint", text)
    assert (found.hint, found.failed) == (hint, None)


@pytest.mark.parametrize(
    "text",
    [
        "Be brief.",
        "[HINT_START]Be brief.",
        "[HINT_START]A[HINT_END][HINT_START]B[HINT_END]",
        "[HINT_START]A[HINT_END][NO_HINT]",
    ],
)
def test_unreadable_hints_fail(text: str) -> None:
    assert vote("hint", text).failed


def test_schema_votes() -> None:
    assert vote("score", '{"score": -1}', schema=True).score == -1
    assert vote("hint", '{"hint": " Be\\nbrief. "}', schema=True).hint == "Be brief."
    assert vote("hint", '{"hint": null}', schema=True).failed is None
    for text in ('{"score": 2}', '{"score": true}', '{"score": "1"}', "[]", "no", "{}"):
        assert vote("score", text, schema=True).failed
    for text in ("{}", '{"hint": 3}', "[]"):
        assert vote("hint", text, schema=True).failed


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [3]}, {"choices": [{"message": None}]}])
def test_broken_completions_fail(body: dict[str, Any]) -> None:
    assert parse_vote("score", body, schema=False).failed


@pytest.mark.parametrize("question", ["score", "hint"])
@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("\\boxed{\ud800}[HINT_START]Be brief \udfff.[HINT_END]", False),
        ('{"hint": "Be brief, please \\ud800.", "score": "\\ud800"}', True),
        ("[" * 100_000, True),
        ('{"score": ' + "9" * 5000 + ', "hint": 5}', True),
    ],
)
def test_what_cannot_be_stored_or_read_is_a_failed_vote(question: Question, text: str, schema: bool) -> None:
    failed = vote(question, text, schema=schema).failed
    assert failed is not None
    failed.encode()
