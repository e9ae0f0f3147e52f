"""A linker takes over from another: what reads alike is not mistaken for what is settled, nor the other way round."""

from __future__ import annotations

from typing import Any

import pytest
from hintloop_contract.codec import encode_payload
from hintloop_contract.messages import Capture

from .deployment import BASH, CALL, CALLED, FAILED, RESULT, Deployment
from .test_linker import make_capture, said

GREEN, BLUE = said("green"), said("blue")
OTHER_TOOLS = {"tools": [*BASH["tools"], {"type": "function", "function": {"name": "more"}}]}


def called_alike(**fields: Any) -> Deployment:
    """``green`` is settled; ``blue`` is not, and called its tool by the same id: the engine counts."""
    run = Deployment()
    run.feed(
        make_capture("blue", BLUE, CALLED, start_ms=1000, body=BASH),
        make_capture("green", GREEN, CALLED, start_ms=1500, body=BASH),
        make_capture("next", [*GREEN, CALLED, RESULT], **{"start_ms": 2000, "body": BASH, **fields}),
    )
    run.tick(5000)
    assert set(run.links) == {"green"}
    run.take_over(5000)
    return run


@pytest.mark.parametrize(
    ("first", "later", "index"),
    [
        ({}, None, None),
        ({"body": OTHER_TOOLS}, None, None),
        ({}, make_capture("x", [*GREEN, CALLED, {**RESULT, "content": "b"}], start_ms=6000, body=BASH), None),
        ({}, make_capture("x", [*GREEN, CALLED, RESULT, *said("x")], start_ms=6000, body=OTHER_TOOLS), None),
        ({}, make_capture("x", [*said("green [cut]"), CALLED, RESULT], start_ms=6000, body=BASH), None),
        (
            {"answer": None, **FAILED},
            make_capture("x", [*GREEN, CALLED, RESULT, *said("please")], start_ms=6000, body=BASH),
            1,
        ),
        (
            {"num_choices": 2, "response_id": "r", "problem": "count_mismatch"},
            make_capture(
                "x", [*GREEN, CALLED, RESULT], "b", start_ms=2000, body=BASH, num_choices=2, response_id="r", choice=1
            ),
            1,
        ),
    ],
    ids=[
        "read again",
        "with other tools",
        "a fork",
        "a fork with other tools",
        "rewritten",
        "after failed",
        "a choice",
    ],
)
def test_ids_that_an_engine_counts_do_not_lead_to_another_conversation(
    first: dict[str, Any], later: Capture | None, index: int | None
) -> None:
    run = called_alike(**first)
    if later is not None:
        run.feed(later)
    run.flush()
    assert set(run.links) == {"green"}
    session = run.stands("green")[0]
    assert run.stands("next")[:2] == (session, 1)
    if later is not None:
        assert (run.stands("x")[:2] == (session, index)) is (index is not None)
        assert run.stands("x")[0] != run.stands("blue")[0]


def test_ids_that_were_drawn_lead_to_their_conversation() -> None:
    """Also where everything before was rewritten."""
    call = {**CALL, "id": "call_9f8e7d6c5b4a39281706f5e4"}
    called, result = {**CALLED, "tool_calls": [call]}, {**RESULT, "tool_call_id": call["id"]}
    run = Deployment()
    run.feed(make_capture("a", GREEN, called, start_ms=1000, body=BASH))
    run.take_over(2000)
    run.feed(make_capture("b", [*said("green [cut]"), called, result], start_ms=3000, body=BASH))
    run.flush()
    assert run.links["a"].next_turn_id == "b"


@pytest.mark.parametrize("problem", [{}, {"problem": "count_mismatch"}])
def test_an_answer_that_comes_in_late_is_still_linked(problem: dict[str, Any]) -> None:
    """After a takeover the next request may be read before the one whose answer it goes on from."""
    run = Deployment()
    run.feed(make_capture("a", said("q"), start_ms=1000, **problem))
    later = make_capture("b", said("q", "fine", "r"), start_ms=2000)
    if not problem:
        run.feed(make_capture("other", said("q", "fine", "else"), start_ms=1500))
    run.take_over(2000)
    run.feed(make_capture("c", said("q", "fine", "r", "fine", "s"), start_ms=3000), later)
    run.flush()
    assert run.links["b"].next_turn_id == "c"


def test_equal_openings_that_failed_are_tried_again_in_their_order() -> None:
    run = Deployment()
    run.feed(*(make_capture(f"f{i}", said("q"), None, start_ms=1000 + i, **FAILED) for i in range(3)))
    run.take_over(1500)
    run.feed(*(make_capture(f"r{i}", said("q"), f"answer {i}", start_ms=2000 + i) for i in range(3)))
    assert [run.stands(f"r{i}") for i in range(3)] == [("s0", 0, 0), ("s1", 0, 0), ("s2", 0, 0)]


def test_what_was_tried_again_is_not_tried_by_another_agent() -> None:
    run = Deployment()
    run.feed(
        make_capture("f", said("q"), None, start_ms=1000, **FAILED),
        make_capture("r", said("q"), "one", start_ms=1500, problem="count_mismatch"),
    )
    run.take_over(3000)
    run.feed(make_capture("other", said("q"), "two", start_ms=4000))
    run.feed(make_capture("s", said("q", "one", "more"), start_ms=5000))
    assert (run.stands("s"), run.stands("other")[0] == "s0") == (("s0", 1, 0), False)


def test_what_was_continued_stays_so_through_two_linkers() -> None:
    """Whichever of them knew it."""
    run = Deployment()
    run.feed(make_capture("a", said("q"), "good", start_ms=1000, problem="count_mismatch"))
    run.take_over(1500)
    run.feed(make_capture("b", said("q", "good", "s"), "well", start_ms=2000))
    run.feed(make_capture("c", said("q", "good", "s", "well", "t"), start_ms=3000))
    run.take_over(3500)
    run.feed(make_capture("fork", said("q", "good", "another way"), start_ms=4000))
    run.feed(make_capture("d", said("q", "good", "s", "well", "t", "fine", "u"), start_ms=5000))
    assert [run.stands(turn_id)[:2] for turn_id in "abcd"] == [("s0", number) for number in range(4)]
    assert run.stands("fork")[0] != "s0"


def test_of_equal_turns_agents_go_on_with_their_own() -> None:
    """By the session that they name, else in the order in which they began."""
    named = {"identity": {"x-session-id": "X"}}
    run = Deployment()
    for name, fields in (("a", {}), ("b", {}), ("c", named)):
        run.feed(make_capture(name, said("q"), start_ms=1000, problem="count_mismatch", **fields))
    run.take_over(2000)
    for name, fields in (("c", named), ("a", {}), ("b", {})):
        run.feed(make_capture(name * 2, said("q", "fine", name), start_ms=3000, **fields))
    assert [run.stands(name * 2)[0] == run.stands(name)[0] for name in "abc"] == [True] * 3


def test_a_side_call_about_a_settled_turn_is_none_of_its_session() -> None:
    run = Deployment()
    told = said("paint the wall", "it is done", "now the door")
    run.feed(
        make_capture("a", said("paint the wall"), "it is done", start_ms=1000, body=BASH),
        make_capture("b", told, start_ms=2000, body=BASH, problem="count_mismatch"),
    )
    run.take_over(2500)
    run.feed(make_capture("title", [*told[:2], *said("Write a title for this")], "Painting", start_ms=3000))
    run.feed(make_capture("c", [*told, *said("x", "fine", "thanks")[1:]], start_ms=4000, body=BASH))
    assert run.places["title"].side and run.stands("c")[:2] == ("s0", 2)


def test_notes_are_small_whatever_a_client_sends() -> None:
    run = Deployment()
    body = {"conversation": "x" * 500_000, "metadata": {"user_id": "u_session_" + "x" * 500_000}}
    run.feed(make_capture("a", said("q" * 10_000), "fine" * 10_000, body=body, problem="count_mismatch"))
    assert len(encode_payload(run.notes[0])) < 500


def test_what_cannot_be_gone_on_with_is_forgotten() -> None:
    run = Deployment(session_timeout_ms=5000)
    run.feed(make_capture("a", said("q"), start_ms=1000, problem="count_mismatch"))
    run.take_over(2000)
    assert len(run._linker._board.earlier) == 1
    run.tick(2000 + 5000)
    assert len(run._linker._board.earlier) == 1, "a request that came in time may be answered later"
    run.tick(2000 + 10_001)
    assert len(run._linker._board.earlier) == 0
