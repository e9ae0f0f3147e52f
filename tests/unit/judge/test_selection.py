import pytest
from hintloop_contract.config.schema import OpdSection
from hintloop_contract.messages import Vote
from hintloop_judge.selection import has_quorum, hint_problem, majority_score, select_hint

FAILED = Vote(failed="cut")
SECTION = OpdSection(min_hint_length=10, max_hint_length=30)


def scored(*scores: int) -> list[Vote]:
    return [Vote(score=score) for score in scores]


@pytest.mark.parametrize(
    ("votes", "score"),
    [
        (scored(1, 1, -1), 1),
        (scored(-1), -1),
        (scored(1, -1), 0),
        (scored(1, 0), 0),
        (scored(1, 0, -1), 0),
        ([*scored(1), FAILED, FAILED], 1),
        ([FAILED], None),
        ([], None),
    ],
)
def test_majority(votes: list[Vote], score: int | None) -> None:
    assert majority_score(votes) == score


def test_quorum_counts_failed_votes_as_failed() -> None:
    assert has_quorum([*scored(1, 1), FAILED], 0.5)
    assert has_quorum([*scored(1), FAILED], 0.5)
    assert not has_quorum([*scored(1), FAILED, FAILED], 0.5)
    assert not has_quorum([], 0.5)


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        ("Be brief.", "too_short"),
        ("Be briefer.", None),
        ("x" * 30, None),
        ("x" * 31, "too_long"),
        ("Do a better job!", "generic"),
        ("Give a better answer please.", "generic"),
        ("water falls from the clouds", "quotes_answer"),
        ("Say water falls first", None),
        ("In French<|im_end|>.", "control_token"),
        ("French</s> only", "control_token"),
        ("[/INST] In French", "control_token"),
        ("<end_of_turn> French", "control_token"),
        ("Use <b> | <i> tags", None),
    ],
)
def test_hint_problems(hint: str, problem: str | None) -> None:
    answer = "Rain is when water falls from the clouds to the ground."
    assert hint_problem(hint, answer, SECTION) == problem


def test_the_longest_acceptable_hint_is_taken() -> None:
    votes = [Vote(hint="Answer in French."), Vote(hint="Answer in short French."), Vote(hint="x" * 31), FAILED]
    hint, rejected = select_hint(votes, "", SECTION)
    assert hint == "Answer in short French."
    assert rejected == {"too_long": 1}


def test_declining_votes_count_against_hints() -> None:
    offered, declined = Vote(hint="Answer in French."), Vote()
    assert select_hint([offered, declined, declined], "", SECTION)[0] is None
    assert select_hint([offered, declined], "", SECTION)[0] is None
    assert select_hint([offered, offered, declined], "", SECTION)[0] == "Answer in French."
    assert select_hint([offered, FAILED, FAILED], "", SECTION)[0] == "Answer in French."


def chosen(by: str, *hints: str) -> str | None:
    section = OpdSection.model_validate({"hint_selection": by})
    return select_hint([Vote(hint=hint) for hint in hints], "", section)[0]


def test_which_hint_is_taken_is_configured() -> None:
    hints = (
        "Answer in one short sentence.",
        "Answer in one sentence.",
        "Write a poem in French about the moon and the sea at night.",
        "Answer in a single short sentence.",
    )
    assert chosen("longest", *hints) == hints[2]
    assert chosen("shortest", *hints) == hints[1]
    assert chosen("consensus", *hints) == hints[0]
    assert OpdSection().hint_selection == "longest"


def test_hints_that_votes_repeat_weigh_in_a_consensus_and_stand_once() -> None:
    odd, common = "Write a long poem about it.", "Answer in French please."
    votes = [Vote(hint=odd), Vote(hint=common), Vote(hint="answer in french, please!")]
    hint, rejected = select_hint(votes, "", OpdSection.model_validate({"hint_selection": "consensus"}))
    assert (hint, rejected) == (common, {"repeated": 1})


@pytest.mark.parametrize("by", ["longest", "shortest", "consensus"])
def test_among_equally_good_hints_the_first_is_taken(by: str) -> None:
    assert chosen(by, "Answer in French.", "Answer on Friday.") == "Answer in French."


@pytest.mark.parametrize(
    ("hint", "answer", "problem"),
    [
        ("请回答得更好一些吧,谢谢你", "北京。", None),
        ("请把答案写得更好一点", "北京。", "generic"),
        ("请用一句话回答这个问题", "北京是中国的首都。", None),
        ("答案是北京是中国的首都", "北京是中国的首都。", "quotes_answer"),
        ("The answer is Canberra.", "Canberra.", "quotes_answer"),
        ("Say Canberra, not Sydney.", "Sydney.", None),
        ("Say less about the rain falling.", "The rain is falling.", None),
    ],
)
def test_quotations_and_platitudes(hint: str, answer: str, problem: str | None) -> None:
    assert hint_problem(hint, answer, OpdSection()) == problem


def test_quotations_can_be_allowed() -> None:
    answer = "Rain is when water falls from the clouds to the ground."
    assert hint_problem(answer, answer, OpdSection()) == "quotes_answer"
    assert hint_problem(answer, answer, OpdSection(allow_quoted_hints=True)) is None
