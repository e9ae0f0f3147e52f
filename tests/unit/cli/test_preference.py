import pytest
from hintloop.demo.preference import Answer, is_joint, is_on_topic, is_satisfied, measure, topic_words, wilson
from scipy.stats import norm


def answer(text: str, finish_reason: str | None = "stop", topic: str = "a battery") -> Answer:
    return Answer("What is it?", topic, text, finish_reason)


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [
        ("A battery stores energy.", "stop", True),
        ("A battery stores energy", "stop", True),
        ("  A battery stores energy.\n", "stop", True),
        ("It holds 1.5 volts of charge.", "stop", True),
        ("What a battery it is...", "stop", True),
        ("A battery stores energy.", "length", False),
        ("A battery stores energy.", None, False),
        ("A battery stores energy. It has two poles.", "stop", False),
        ('It is "charged." Then it is empty.', "stop", False),
        ("A battery:\nit stores energy", "stop", False),
        ("A battery.", "stop", False),
        ("", "stop", False),
    ],
)
def test_satisfied_is_one_short_line_that_ends_by_itself(text: str, finish_reason: str | None, expected: bool) -> None:
    assert is_satisfied(answer(text, finish_reason)) is expected


@pytest.mark.parametrize(
    ("topic", "text", "expected"),
    [
        ("a battery", "Batteries store energy.", True),
        ("volcanoes", "A volcano erupts.", True),
        ("the lungs", "A lung breathes.", True),
        ("DNA", "It is dna, of course.", True),
        ("a black hole", "A hole in space.", True),
        ("the history of glass", "Glass is old.", True),
        ("owls", "An owl's eyes are large.", True),
        ("a battery", "A battered old thing.", False),
        ("gas", "It is a big thing.", False),
        ("the brain", "The best of the rest.", False),
    ],
)
def test_topic_words_match_in_singular_and_plural(topic: str, text: str, expected: bool) -> None:
    assert is_on_topic(answer(text, topic=topic)) is expected


def test_topic_of_empty_words_alone_keeps_them() -> None:
    assert topic_words("The The") == ["the", "the"]
    assert topic_words("the moon") == ["moon"]


def test_joint_needs_both() -> None:
    assert is_joint(answer("A battery stores energy."))
    assert not is_joint(answer("A thing that stores energy."))
    assert not is_joint(answer("A battery stores energy. It is heavy."))


@pytest.mark.parametrize(("successes", "n"), [(0, 64), (6, 64), (52, 64), (64, 64)])
def test_wilson_is_the_score_interval(successes: int, n: int) -> None:
    # The defining property: at either bound the score statistic is the normal quantile.
    z = norm.ppf(0.975)
    share = successes / n
    for bound in wilson(successes, n):
        if 0 < bound < 1:
            assert (share - bound) ** 2 == pytest.approx(z**2 * bound * (1 - bound) / n)


def test_rates_of_a_set_and_of_nothing() -> None:
    rates = measure([answer("A battery stores energy."), answer("A box stores energy."), answer("No.")])
    assert (rates.satisfied, rates.joint, rates.n) == (pytest.approx(2 / 3), pytest.approx(1 / 3), 3)
    assert rates.joint_ci[0] < rates.joint < rates.joint_ci[1]
    assert measure([]).joint_ci == (0.0, 1.0)
