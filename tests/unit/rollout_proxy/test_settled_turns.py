"""A linker takes over from another: sessions go on, and no turn gets what it would not have got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.tensors import pack
from hintloop_rollout_proxy.linking.cases import read_file

from .deployment import BASH, CALLED, FAILED, RESULT, Deployment
from .test_linker import CASES, make_capture, said


def links_of(path: Path, cut: int) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Links of a case when another linker takes over after ``cut`` requests; and its sessions."""
    _, captures = read_file(path)
    captures.sort(key=lambda capture: (capture.end_ms, capture.start_ms))
    run = Deployment(max_turns_per_session=1000)
    run.feed(*captures[:cut])
    if cut:
        run.take_over(captures[cut - 1].end_ms)
    run.feed(*captures[cut:])
    run.flush()
    sessions: dict[str, set[str]] = {}
    for place in run.places.values():
        if not place.side:
            sessions.setdefault(place.session_id, set()).add(place.turn_id)
    return {turn_id: link.next_turn_id for turn_id, link in run.links.items()}, sessions


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_no_turn_gets_the_words_of_another_conversation(path: Path) -> None:
    """Wherever a linker takes over: it links nothing that the first would not have linked, and mixes no sessions."""
    _, captures = read_file(path)
    links, whole = links_of(path, 0)
    for cut in range(1, len(captures)):
        found, sessions = links_of(path, cut)
        assert found.items() <= links.items(), cut
        for members in sessions.values():
            joined = [session for session in whole.values() if session & members]
            assert len(joined) <= 1, cut


def test_most_sessions_go_on() -> None:
    """What begins anew are agents that rewrite what was said. Without what is kept it was more than half."""
    total = anew = 0
    for path in CASES:
        _, whole = links_of(path, 0)
        for cut in range(1, len(read_file(path)[1])):
            total += 1
            anew += len(links_of(path, cut)[1]) > len(whole)
    assert anew < total / 4, f"{anew} of {total}"


def chat(*texts: str) -> dict[str, Any]:
    return {"messages": said(*texts)}


def capture_of(api: str, turn_id: str, body: dict[str, Any], start_ms: int, **fields: Any) -> Capture:
    made = make_capture(turn_id, [], start_ms=start_ms, body=body, **fields)
    request = body if "messages" not in body else {"messages": body["messages"], **body}
    return Capture(
        **{
            **{name: getattr(made, name) for name in made.__struct_fields__},
            "api": api,
            "request": json.dumps(request).encode(),
        }
    )


#: API and answer, then the bodies of three turns in a row.
CONVERSATIONS: dict[str, tuple[str, Any, list[dict[str, Any]]]] = {
    "chat": ("chat_completions", "fine", [chat("q"), chat("q", "fine", "r"), chat("q", "fine", "r", "fine", "s")]),
    "tools": (
        "chat_completions",
        CALLED,
        [{"messages": said("q") + [CALLED, RESULT] * count, **BASH} for count in range(3)],
    ),
    "messages": ("messages", "fine", [chat("q"), chat("q", "fine", "r"), chat("q", "fine", "r", "fine", "s")]),
    "responses": (
        "responses",
        "fine",
        [{"input": "q"}, {"input": "r", "previous_response_id": "r0"}, {"input": "s", "previous_response_id": "r1"}],
    ),
    "completions": ("completions", "fine", [{"prompt": f"Q: {'q fine ' * count}q "} for count in range(3)]),
    "generate": (
        "generate",
        "fine",
        [{"input_ids": [*range(100, 140), *[8, 9, 5] * count]} for count in range(3)],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_goes_on_in_its_session(name: str) -> None:
    api, answer, bodies = CONVERSATIONS[name]
    ids = pack([8, 9], "int32") if api == "generate" else None
    captures = [
        capture_of(api, f"t{i}", body, 1000 * (i + 1), answer=answer, response_id=f"r{i}", response_ids=ids)
        for i, body in enumerate(bodies)
    ]
    whole = Deployment(settle_ms=0, doubt_ms=0)
    whole.feed(*captures)
    expected = [whole.stands(capture.turn_id) for capture in captures]
    assert [index for _, index, _ in expected] == [0, 1, 2] and len({session for session, _, _ in expected}) == 1
    run = Deployment(settle_ms=0, doubt_ms=0)
    run.feed(*captures[:2])
    run.tick(captures[1].end_ms + 500)
    assert set(run.links) == {"t0"}
    run.take_over(captures[1].end_ms + 500)
    run.feed(captures[2])
    assert [run.stands(capture.turn_id) for capture in captures] == expected
    assert run.links.keys() >= {"t0"} and run.places["t2"].continues == "t1"


def three_turns(run: Deployment, **fields: Any) -> None:
    """``a`` and ``b`` are settled and ``c`` is not, when another linker takes over."""
    run.feed(
        make_capture("a", said("q"), start_ms=1000, **fields),
        make_capture("b", said("q", "fine", "r"), start_ms=2000, **fields),
        make_capture("c", said("q", "fine", "r", "fine", "s"), start_ms=3000, **fields),
    )
    assert set(run.links) == {"a", "b"}
    run.take_over(3200)


MORE = said("q", "fine", "r", "fine", "s", "fine", "t")


def test_segments_are_counted_on() -> None:
    run = Deployment(max_turns_per_session=2)
    three_turns(run)
    run.feed(make_capture("d", MORE, start_ms=4000))
    assert [run.stands(turn_id) for turn_id in "abcd"] == [("s0", 0, 0), ("s0", 1, 0), ("s0", 2, 1), ("s0", 3, 1)]


def test_what_was_continued_is_not_continued_again() -> None:
    """Another continuation of the same answer is a fork, and stands in a session of its own."""
    run = Deployment()
    three_turns(run)
    run.feed(make_capture("fork", said("q", "fine", "r", "fine", "another way"), start_ms=4000))
    run.feed(make_capture("d", MORE, start_ms=4500))
    assert run.stands("fork")[0] != "s0" and run.stands("d")[:2] == ("s0", 3)
    assert run.links["c"].next_turn_id == "d"


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({}, True),
        ({"body": BASH}, False),
        ({"identity": {"x-session-id": "another"}}, False),
        ({"credential": "another"}, False),
        ({"tenant": "another"}, False),
        ({"api": "messages"}, False),
        ({"start_ms": 2100 + 300_000}, True),
        ({"start_ms": 2101 + 300_000}, False),
    ],
)
def test_only_the_same_agent_goes_on_and_only_in_time(change: dict[str, Any], goes_on: bool) -> None:
    run = Deployment(settle_ms=0)
    first = {"identity": {"x-session-id": "one"}} if "identity" in change else {}
    run.feed(
        make_capture("a", said("q"), start_ms=1000, **first),
        make_capture("b", said("q", "fine", "r"), problem="count_mismatch", start_ms=2000, **first),
    )
    run.take_over(2200)
    run.feed(make_capture("c", said("q", "fine", "r", "fine", "s"), **{"start_ms": 3000, **change}))
    assert (run.stands("c")[0] == "s0") is goes_on


def test_a_retry_of_what_failed_stands_in_its_place() -> None:
    run = Deployment()
    run.feed(
        make_capture("a", said("q"), start_ms=1000),
        make_capture("b", said("q", "fine", "r"), None, start_ms=2000, **FAILED),
        make_capture("c", said("q", "fine", "r"), None, start_ms=3000, **FAILED),
    )
    run.flush()
    run.take_over(3500)
    run.feed(make_capture("d", said("q", "fine", "r"), start_ms=4000))
    run.feed(make_capture("e", said("q", "fine", "r", "fine", "s"), start_ms=5000))
    assert run.stands("d") == ("s0", 1, 0) and run.stands("e") == ("s0", 2, 0)


def test_what_no_request_goes_on_from_is_not_noted() -> None:
    run = Deployment()
    run.feed(
        make_capture("side", said("q"), turn_type="side"),
        make_capture("last", said("other"), session_done=True),
        make_capture("odd", said("more"), api="embeddings"),
        make_capture("alone", said("something else")),
    )
    run.flush()
    assert run.notes == [] and run.pending == {}
