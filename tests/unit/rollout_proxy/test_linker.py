"""Linking over recorded request sequences, and the rules one by one."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_contract.messages import Capture
from hintloop_rollout_proxy.linking import Decision, Drop, Link, Linker, LinkerOptions, Placed
from hintloop_rollout_proxy.linking.cases import read_file
from hintloop_rollout_proxy.linking.report import report_on

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Sequences shaped like those of real agents; ``cases`` were given, ``agent_cases`` are our own.
CASES = sorted([*(FIXTURES / "cases").glob("*.json"), *(FIXTURES / "agent_cases").glob("*.json")])


def make_linker(**options: int) -> Linker:
    numbers = count()
    return Linker(LinkerOptions(**options), make_id=lambda: f"s{next(numbers)}")


def make_capture(turn_id: str, messages: list[dict[str, Any]], answer: Any = "fine", **fields: Any) -> Capture:
    """A capture that arrived at ``start_ms`` (1,000 unless given) and took 100 ms."""
    start_ms = fields.pop("start_ms", 1000)
    body = {"messages": messages, **fields.pop("body", {})}
    message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
    return Capture(
        turn_id=turn_id,
        engine="vllm",
        engine_url="http://engine",
        request=json.dumps(body).encode(),
        answer=None if message is None else json.dumps(message).encode(),
        start_ms=start_ms,
        end_ms=start_ms + 100,
        **fields,
    )


def said(*texts: str) -> list[dict[str, Any]]:
    """User and assistant texts in turn, a user's first."""
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]


def of_kind(decisions: list[Decision], kind: type[Any]) -> dict[str, Any]:
    return {decision.turn_id: decision for decision in decisions if isinstance(decision, kind)}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    expected = json.loads(path.read_text())["expected"]
    report = report_on(*read_file(path), LinkerOptions(max_turns_per_session=1000))
    assert msgspec.to_builtins(report) | {"name": None} == expected | {"name": None}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_request_of_a_case_is_settled_once(path: Path) -> None:
    linker, decisions = make_linker(), []
    _, captures = read_file(path)
    for capture in captures:
        decisions += linker.feed(capture)
        decisions += linker.tick(capture.end_ms)
    decisions += linker.flush()
    settled = [decision.turn_id for decision in decisions if not isinstance(decision, Placed)]
    assert sorted(settled) == sorted(capture.turn_id for capture in captures)
    assert len(linker) == 0


def test_cases_are_there() -> None:
    assert len(CASES) >= 75


def test_echo_releases_at_once_with_the_whole_next_state() -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    call = {"role": "assistant", "content": None, "tool_calls": calls}
    results = [{"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "user", "content": "and?"}]
    linker.feed(make_capture("b", said("q", "fine", "go"), call, start_ms=2000))
    decisions = linker.feed(make_capture("c", [*said("q", "fine", "go"), call, *results], start_ms=3000))
    link = of_kind(decisions, Link)["b"]
    assert json.loads(link.next_state) == results
    assert (link.turn_index, link.next_turn_id) == (1, "c")


def test_arguments_as_object_or_text_are_the_same() -> None:
    def call(arguments: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        }

    linker = make_linker()
    linker.feed(make_capture("a", said("q"), call('{"b": 1, "a": [2]}')))
    messages = [*said("q"), call({"a": [2], "b": 1}), {"role": "tool", "content": [{"type": "text", "text": "r"}]}]
    assert "a" in of_kind(linker.feed(make_capture("b", messages, start_ms=2000)), Link)


def test_turn_is_settled_once_and_a_second_continuation_forks() -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    assert "a" in of_kind(linker.feed(make_capture("b", said("q", "fine", "one"), start_ms=2000)), Link)
    decisions = linker.feed(make_capture("c", said("q", "fine", "two"), start_ms=3000))
    assert not of_kind(decisions, Link)
    place = of_kind(decisions, Placed)["c"]
    assert (place.forked, place.continues) == (True, "a")
    assert place.session_id not in ("s0",)


def test_equal_openings_with_equal_answers_are_assigned_in_order() -> None:
    linker = make_linker()
    for turn_id in ("a", "b"):
        linker.feed(make_capture(turn_id, said("q")))
    first = linker.feed(make_capture("c", said("q", "fine", "x"), start_ms=2000))
    second = linker.feed(make_capture("d", said("q", "fine", "y"), start_ms=2100))
    assert list(of_kind(first, Link)) == ["a"]
    assert list(of_kind(second, Link)) == ["b"]


@pytest.mark.parametrize("change", [{"credential": "other"}, {"tenant": "other"}, {"session_key": "header:x:1"}])
def test_clients_and_sessions_are_never_joined(change: dict[str, str]) -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q"), session_key="header:x:0"))
    change = {"session_key": "header:x:0"} | change
    assert not of_kind(linker.feed(make_capture("b", said("q", "fine", "x"), start_ms=2000, **change)), Link)


@pytest.mark.parametrize(
    "body", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"messages_prefix": "system"}]
)
def test_other_tools_or_system_text_are_another_line(body: dict[str, Any]) -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    messages = said("q", "fine", "x")
    if "messages_prefix" in body:
        messages, body = [{"role": "system", "content": "S"}, *messages], {}
    assert not of_kind(linker.feed(make_capture("b", messages, start_ms=2000, body=body)), Link)


def test_explicit_session_bears_other_tools_but_waits() -> None:
    linker = make_linker(settle_ms=2000)
    key = {"session_key": "header:x-session-id:1"}
    linker.feed(make_capture("a", said("q"), **key))
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    assert not of_kind(linker.feed(make_capture("b", said("q", "fine", "x"), start_ms=2000, body=tools, **key)), Link)
    assert not of_kind(linker.tick(4099), Link)
    assert "a" in of_kind(linker.tick(4100), Link)


@pytest.mark.parametrize("key", ["body:user:u", "body:prompt_cache_key:p"])
def test_one_user_behind_two_agents_is_no_session(key: str) -> None:
    linker = make_linker()

    def asked(turn_id: str, system: str, *texts: str, start_ms: int) -> dict[str, Any]:
        messages = [{"role": "system", "content": system}, *said(*texts)]
        capture = make_capture(turn_id, messages, session_key=key, start_ms=start_ms)
        return of_kind(linker.feed(capture), Link)

    asked("coder", "You write code.", "hi", start_ms=1000)
    assert not asked("poet", "You write verse.", "hi", "fine", "a poem", start_ms=2000)
    assert linker.tick(10_000) == [], "nor after it waited"
    assert list(asked("coder2", "You write code.", "hi", "fine", "a loop", start_ms=11_000)) == ["coder"]


def test_in_a_session_the_agent_with_the_same_system_text_is_meant() -> None:
    linker = make_linker()
    key = {"session_key": "header:x-session-id:1"}
    systems = {"a": "You write code.", "b": "You write verse."}
    for number, (turn_id, system) in enumerate(systems.items()):
        messages = [{"role": "system", "content": system}, *said("hi")]
        linker.feed(make_capture(turn_id, messages, start_ms=1000 + number, **key))
    messages = [{"role": "system", "content": systems["b"]}, *said("hi", "fine", "a poem")]
    assert list(of_kind(linker.feed(make_capture("c", messages, start_ms=2000, **key)), Link)) == ["b"]


def test_in_a_session_another_system_text_is_not_certain() -> None:
    linker = make_linker(settle_ms=2000)
    key = {"session_key": "header:x-session-id:1"}
    linker.feed(make_capture("a", said("q"), **key))
    other = [{"role": "system", "content": "S"}, *said("q", "fine", "other")]
    assert not of_kind(linker.feed(make_capture("b", other, start_ms=2000, **key)), Link)
    link = of_kind(linker.feed(make_capture("c", said("q", "fine", "own"), start_ms=2500, **key)), Link)["a"]
    assert json.loads(link.next_state) == [{"role": "user", "content": "own"}]


@pytest.mark.parametrize("arguments", ["[" * 3000, "[" * 3000 + "]" * 3000, "1" + "0" * 400, "{", "\x00"])
def test_arguments_of_any_text_are_compared(arguments: str) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    linker = make_linker()
    linker.feed(make_capture("a", said("q"), call))
    messages = [*said("q"), call, {"role": "tool", "content": "r"}]
    assert list(of_kind(linker.feed(make_capture("b", messages, start_ms=2000)), Link)) == ["a"]


@pytest.mark.parametrize("answer", [b"null", b"[", b"5"])
def test_unreadable_answer_is_dropped_not_raised(answer: bytes) -> None:
    linker = make_linker()
    capture = Capture(
        turn_id="x", engine="vllm", engine_url="u", request=b'{"messages":[]}', answer=answer, start_ms=1, end_ms=2
    )
    (drop,) = linker.feed(capture)
    assert isinstance(drop, Drop) and drop.reason == "not_trainable"
    assert len(linker) == 0


def test_answer_not_echoed_waits_and_gives_way_to_an_echo() -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    unsure = [*said("q"), {"role": "user", "content": "error: no tool call"}]
    assert not of_kind(linker.feed(make_capture("b", unsure, start_ms=2000)), Link)
    link = of_kind(linker.feed(make_capture("c", said("q", "fine", "x"), start_ms=2500)), Link)["a"]
    assert json.loads(link.next_state) == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("content", [None, "", " "])
@pytest.mark.parametrize("more", [{}, {"reasoning_content": "Hm."}])
def test_an_answer_of_thoughts_alone_is_no_next_state(content: Any, more: dict[str, str]) -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q"), {"role": "assistant", "content": None, "reasoning_content": "Hm."}))
    after = [*said("q"), {"role": "assistant", "content": content, **more}, {"role": "user", "content": "Say it."}]
    linker.feed(make_capture("b", after, start_ms=2000))
    link = of_kind(linker.flush(), Link)["a"]
    assert json.loads(link.next_state) == [{"role": "user", "content": "Say it."}]


def test_deadline_counts_from_answer_to_arrival() -> None:
    for late, linked in ((0, True), (1, False)):
        linker = make_linker(session_timeout_ms=5000)
        linker.feed(make_capture("a", said("q"), start_ms=1000))
        decisions = linker.feed(make_capture("b", said("q", "fine", "x"), start_ms=1100 + 5000 + late))
        assert ("a" in of_kind(decisions, Link)) is linked


def test_deadline_waits_for_a_request_in_flight() -> None:
    linker = make_linker(session_timeout_ms=5000, grace_ms=1000)
    linker.feed(make_capture("a", said("q"), start_ms=1000))
    assert linker.tick(7099) == []
    assert linker.tick(20_000, oldest_in_flight_ms=6100) == []
    assert "a" in of_kind(linker.feed(make_capture("b", said("q", "fine", "x"), start_ms=6000)), Link)
    linker = make_linker(session_timeout_ms=5000, grace_ms=1000)
    linker.feed(make_capture("a", said("q"), start_ms=1000))
    (drop,) = linker.tick(7100, oldest_in_flight_ms=6101)
    assert isinstance(drop, Drop) and drop.reason == "no_next_state"
    assert len(linker) == 0


def test_problem_drops_but_still_carries_a_next_state() -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    decisions = linker.feed(make_capture("b", said("q", "fine", "x"), start_ms=2000, problem="count_mismatch"))
    assert "a" in of_kind(decisions, Link)
    assert of_kind(decisions, Drop)["b"].reason == "count_mismatch"
    after = linker.feed(make_capture("c", said("q", "fine", "x", "fine", "y"), start_ms=3000))
    assert of_kind(after, Placed)["c"].continues == "b"
    assert not of_kind(after, Link)


def test_side_and_done() -> None:
    linker = make_linker()
    decisions = linker.feed(make_capture("t", said("title?"), turn_type="side"))
    assert of_kind(decisions, Placed)["t"].side and of_kind(decisions, Drop)["t"].reason == "side"
    decisions = linker.feed(make_capture("u", said("title?"), turn_type="side", problem="count_mismatch"))
    assert of_kind(decisions, Drop)["u"].reason == "count_mismatch", "a mismatch shows wherever it is"
    decisions = linker.feed(make_capture("a", said("q"), session_done=True))
    assert of_kind(decisions, Drop)["a"].reason == "no_next_state"


def test_turn_after_the_last_opens_a_segment() -> None:
    linker = make_linker(max_turns_per_session=2)
    texts, places = ["q"], []
    for number in range(4):
        decisions = linker.feed(make_capture(str(number), said(*texts), start_ms=1000 * (number + 1)))
        places.append(of_kind(decisions, Placed)[str(number)])
        texts += ["fine", f"more {number}"]
        if number:
            assert str(number - 1) in of_kind(decisions, Link)
    assert [(place.session_id, place.turn_index, place.segment) for place in places] == [
        ("s0", 0, 0),
        ("s0", 1, 0),
        ("s0", 2, 1),
        ("s0", 3, 1),
    ]


def test_prefilled_answer_is_no_next_state() -> None:
    linker = make_linker()
    linker.feed(make_capture("a", said("q")))
    assert not of_kind(linker.feed(make_capture("b", said("q", "fine"), start_ms=2000)), Link)


def test_unreadable_request_is_dropped_not_raised() -> None:
    linker = make_linker()
    bad = make_capture("a", [{"role": "user", "content": "q"}])
    broken = Capture(turn_id="x", engine="vllm", engine_url="u", request=b"[1", start_ms=1, end_ms=2)
    odd = make_capture("y", ["not an object"])  # type: ignore[list-item]
    linker.feed(bad)
    for capture in (broken, odd):
        (drop,) = linker.feed(capture)
        assert isinstance(drop, Drop) and drop.reason == "not_trainable"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [7, {"function": 3}], "content": {"a": 1}},
        {
            "role": "user",
            "content": [None, 3, {"type": "tool_result", "content": {"x": []}}, {"type": "text", "text": 4}],
        },
        {"role": ["odd"], "content": "x", "function_call": []},
        {},
    ],
)
def test_odd_messages_say_what_they_can(message: dict[str, Any]) -> None:
    linker = make_linker()
    linker.feed(make_capture("a", [*said("q"), message], message))
    more = [*said("q"), message, *said("and a question of its own", "fine", "x")]
    assert "b" in of_kind(linker.feed(make_capture("b", more, start_ms=2000)), Placed)


def test_forgets_what_is_over() -> None:
    linker = make_linker(session_timeout_ms=5000)
    for number in range(50):
        linker.feed(make_capture(str(number), said(f"q{number}"), start_ms=1000 + number))
        linker.feed(make_capture(f"{number}b", said(f"q{number}", "fine", "x"), start_ms=2000 + number))
    assert len(linker) == 100
    decisions = linker.tick(100_000)
    assert len(of_kind(decisions, Drop)) == 50
    assert len(linker) == 0


def test_an_answer_that_seems_to_come_after_its_echo_makes_no_ring() -> None:
    linker = make_linker()
    named: dict[str, Any] = {"session_key": "header:x-session-id:1"}
    second = make_capture("b", said("rain?", "It rains.", "Shorter."), "Rain.", **named)
    captures = [
        msgspec.structs.replace(second, start_ms=5000, end_ms=3994),
        msgspec.structs.replace(make_capture("a", said("rain?"), "It rains.", **named), start_ms=3985, end_ms=4731),
        make_capture("d", said("rain?", "It rains.", "Shorter.", "Rain.", "Go on."), "So?", start_ms=5802, **named),
    ]

    decisions = [decision for capture in captures for decision in linker.feed(capture)] + linker.flush()

    settled = [decision.turn_id for decision in decisions if not isinstance(decision, Placed)]
    assert sorted(settled) == ["a", "b", "d"]
