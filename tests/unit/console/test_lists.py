"""Lists: filters, search, pages, sums."""

import pytest
from hintloop_console import histogram, lists
from hintloop_console.errors import RequestError
from hintloop_console.lists import TurnFilter
from hintloop_contract.history import Trained

from tests.unit.console.story import Story, drop, judged, linked, record, trained


@pytest.fixture
def read(store):
    def read(function, *arguments):
        with store.reading() as connection:
            return function(connection, *arguments)

    return read


def ids(page):
    return [row["turn_id"] for row in page["rows"]]


def test_pages_follow_one_another_without_gap_or_repetition(teller, read):
    story = Story()
    for number in range(25):
        teller.apply([story.entry("turn", linked(f"t{number:02}"), record(f"t{number:02}"))])
    seen, after = [], ""
    while after is not None:
        page = read(lists.turns, TurnFilter(), after, 10)
        assert page["total"] == 25
        seen += ids(page)
        after = page["next"]
        # One that comes in while pages are turned moves nothing.
        teller.apply([story.entry("drop", drop("x"))])
    assert seen == [f"t{number:02}" for number in reversed(range(25))]


@pytest.mark.parametrize("after", ["-1", "x", "1 OR 1", "9" * 30])
def test_a_cursor_that_is_none_is_refused(read, after):
    with pytest.raises(RequestError, match="after .* is no cursor"):
        read(lists.turns, TurnFilter(), after, 10)


def test_turns_are_chosen_by_session_stage_and_reason(teller, read):
    story = Story()
    teller.apply(
        [
            story.entry("turn", linked("a", session_id="s1"), record("a")),
            story.entry("turn", linked("b", session_id="s2"), record("b")),
            story.entry("judged", judged("b", session_id="s2")),
            story.entry("turn", linked("c", session_id="s2"), record("c")),
            story.entry("drop", drop("c", "no_hint")),
        ]
    )
    assert ids(read(lists.turns, TurnFilter(session_id="s2"), "", 10)) == ["c", "b"]
    assert ids(read(lists.turns, TurnFilter(stage="linked"), "", 10)) == ["a"]
    assert ids(read(lists.turns, TurnFilter(reason="no_hint"), "", 10)) == ["c"]
    assert read(lists.turns, TurnFilter(stage="trained"), "", 10) == {"rows": [], "next": None, "total": 0}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("weather", ["a"]),
        ("WEATH", ["a"]),
        ("lisbon weather", ["a"]),
        ("weather paris", []),
        ("rain*", ["a"]),
        ('"; DROP TABLE turns; --', []),
        ("don't", ["b"]),
        ("cafe", ["b"]),
        ("天气", ["c"]),
        ("气天", []),
        ("里斯本 天气", ["c"]),
        ("sentence", ["a", "b", "c"]),
        ("Be kind", []),
        ("old question", []),
        ("   ", ["c", "b", "a"]),
        ("!!!", []),
        ("0193aa", ["b"]),
    ],
)
def test_the_search_finds_words_of_any_language(teller, read, query, found):
    story = Story()
    said = {
        "a": ("a", "weather in Lisbon?", "It may rain_later today."),
        "b": ("0193aabb-0000", "Don't you know a café?", "Several."),
        "c": ("c", "里斯本的天气怎么样?", "很好。"),
    }
    for turn_id, question, answer in said.values():
        teller.apply(
            [
                story.entry("turn", linked(turn_id), record(turn_id, question, answer)),
                story.entry("judged", judged(turn_id)),
            ]
        )
    names = {turn_id: name for name, (turn_id, *_) in said.items()}
    page = read(lists.turns, TurnFilter(q=query), "", 10)
    assert sorted(names[turn_id] for turn_id in ids(page)) == sorted(found)
    assert page["total"] == len(found)


def test_sessions_are_summed_newest_first(teller, read):
    story = Story()
    for number, (turn_id, session) in enumerate([("a", "s1"), ("b", "s2"), ("c", "s1")]):
        teller.apply(
            [
                story.entry("turn", linked(turn_id, session_id=session), record(turn_id, answer=f"answer {turn_id}")),
                story.entry("judged", judged(turn_id, score=1 if number else -1, session_id=session)),
            ]
        )
    page = read(lists.sessions, "", "", 1)
    [row] = page["rows"]
    assert (row["session_id"], row["turns"], row["score_mean"], row["last_text"]) == ("s1", 2, 0.0, "answer c")
    assert row["last_ms"] - row["first_ms"] == 4000 and page["total"] == 2
    [row] = read(lists.sessions, "", page["next"], 1)["rows"]
    assert row["session_id"] == "s2"
    assert [r["session_id"] for r in read(lists.sessions, "b", "", 9)["rows"]] == ["s2"]


def test_advantages_are_counted_by_bin(teller, read):
    story = Story()
    teller.apply(story.whole("a", step=1))
    teller.apply(story.whole("b", step=2))
    teller.apply([story.entry("trained", trained("b", 2, (0.05, 30.0, 0.0)))])
    every = read(lists.advantages, None, None)
    assert every["tokens"] == sum(every["counts"]) == 6
    assert every["share_positive"] == pytest.approx(3 / 6) and every["share_negative"] == pytest.approx(2 / 6)
    assert every["share_above_10"] == pytest.approx(2 / 6)
    assert every["counts"][0] == 1 and every["counts"][-1] == 1, "what lies beyond is in the outer bins"
    first = read(lists.advantages, 1, 1)
    assert first["tokens"] == 3
    place = next(i for i, edge in enumerate(first["edges"]) if edge <= 0.25 < first["edges"][i + 1])
    assert first["counts"][place] == 1
    assert read(lists.advantages, 5, None) == {
        "edges": histogram.EDGES,
        "counts": [0] * histogram.NUM_BINS,
        "tokens": 0,
        "share_positive": None,
        "share_negative": None,
        "share_above_10": None,
    }


def test_turns_whose_weights_were_given_up_count_no_more(teller, read):
    story = Story()
    teller.apply([*story.whole("a"), story.entry("drop", drop("a", "gate_rejected", "train"))])
    assert read(lists.advantages, None, None)["tokens"] == 0


def test_a_turn_trained_without_advantages_has_none(teller, read):
    story = Story()
    teller.apply([*story.whole("a")[:3], story.entry("trained", Trained(turn_id="a", step=1))])
    assert read(lists.turns, TurnFilter(), "", 1)["rows"][0]["advantage_mean"] is None


def test_drops_are_shown_over_time(teller, read):
    story = Story(start_ms=600_000 * 1000)
    teller.apply([story.entry("drop", drop(f"d{n}", "side" if n % 2 else "retry", "capture")) for n in range(6)])
    found = read(lists.drops, story._ms, 60)
    assert found["reasons"] == {"capture:retry": 3, "capture:side": 3}
    assert sum(sum(bucket["counts"].values()) for bucket in found["series"]) == 6
    assert len(found["series"]) in (60, 61, 62)
    assert [example["turn_id"] for example in found["examples"]] == ["d5", "d4", "d3", "d2", "d1", "d0"]
    later = read(lists.drops, story._ms + 3_600_000 * 2, 60)
    assert later["reasons"] == {} and later["examples"] == []


def test_what_changed_is_told_once_and_in_order(teller, read):
    story = Story()
    teller.apply(story.whole("a"))
    since = teller.change()
    assert read(lists.changed, since, None) == []
    teller.apply([story.entry("drop", drop("a")), story.step(1), *story.whole("b")])
    found = read(lists.changed, since, None)
    assert [(kind, row.get("turn_id") or row["step"]) for _, kind, row in found] == [
        ("turn", "a"),
        ("step", 1),
        ("turn", "b"),
    ]
    assert found[-1][2]["stage"] == "trained", "as it is now, not once for every stage"
    assert read(lists.changed, found[-1][0], None) == []
