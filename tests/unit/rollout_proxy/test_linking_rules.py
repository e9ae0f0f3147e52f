"""Rules of linking that wire cases do not show: several choices, feedback, ids, what a late verdict leaves behind."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import msgspec
import pytest
from hintloop_contract.messages import Capture
from hintloop_contract.tensors import pack
from hintloop_rollout_proxy.kept_headers import identity_headers
from hintloop_rollout_proxy.linking import Decision, Drop, Link, Linker, LinkerOptions, Placed
from hintloop_rollout_proxy.linking.events import BodyIds
from hintloop_rollout_proxy.linking.identity import read_body_ids, read_identity

TOOLS = [{"type": "function", "function": {"name": "f"}}]


def make_linker(**options: int) -> Linker:
    numbers = count()
    return Linker(LinkerOptions(**options), make_id=lambda: f"s{next(numbers)}")


def capture(turn_id: str, start_ms: int, *said: Any, answer: Any = None, body: Any = None, **fields: Any) -> Capture:
    """A chat capture whose user and assistant texts are ``said`` in turn; it took 100 ms."""
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": text} if isinstance(text, str) else text
        for i, text in enumerate(said)
    ]
    message = {"role": "assistant", "content": answer if answer is not None else f"This is answer {turn_id}."}
    values = {
        "engine": "vllm",
        "engine_url": "",
        "request": json.dumps({"messages": messages, **(body or {})}).encode(),
        "answer": json.dumps(message).encode(),
        "start_ms": start_ms,
        "end_ms": start_ms + 100,
    }
    return Capture(turn_id=turn_id, **(values | fields))


def feedback(feedback_id: str, **said: Any) -> Capture:
    members = {"response_id": None, "session_id": None, "turn_id": None, "score": None, "text": None}
    tenant = said.pop("tenant", "default")
    request = json.dumps(members | said).encode()
    return Capture(
        turn_id=feedback_id,
        tenant=tenant,
        credential="another",
        api="feedback",
        engine="",
        engine_url="",
        request=request,
        start_ms=9000,
        end_ms=9000,
    )


def of_kind(decisions: list[Decision], kind: type[Any]) -> dict[str, Any]:
    return {decision.turn_id: decision for decision in decisions if isinstance(decision, kind)}


def choices(*texts: str) -> list[Capture]:
    return [
        capture(f"c{i}", 1000, "q", answer=text, response_id="r", choice=i, num_choices=len(texts))
        for i, text in enumerate(texts)
    ]


def test_of_several_choices_the_echoed_one_is_linked_and_the_others_drop() -> None:
    linker = make_linker()
    decisions = [decision for each in choices("red", "green", "blue") for decision in linker.feed(each)]
    assert {place.session_id for place in of_kind(decisions, Placed).values()} == {"s0"}
    decisions = linker.feed(capture("d", 2000, "q", "green", "more"))
    assert json.loads(of_kind(decisions, Link)["c1"].next_state) == [{"role": "user", "content": "more"}]
    assert {turn_id: drop.reason for turn_id, drop in of_kind(decisions, Drop).items()} == {
        "c0": "not_continued",
        "c2": "not_continued",
    }


def test_choices_of_a_later_turn_carry_its_parents_next_state_once() -> None:
    linker = make_linker()
    linker.feed(capture("a", 500, "hi", answer="yes"))
    decisions = []
    for i, text in enumerate(("red", "green")):
        made = capture(f"c{i}", 1000, "hi", "yes", "q", answer=text, response_id="r", choice=i, num_choices=2)
        decisions += linker.feed(made)
    assert list(of_kind(decisions, Link)) == ["a"]
    assert not any(place.forked for place in of_kind(decisions, Placed).values())
    decisions = linker.feed(capture("d", 2000, "hi", "yes", "q", "red", "ok"))
    assert list(of_kind(decisions, Link)) == ["c0"] and list(of_kind(decisions, Drop)) == ["c1"]


def test_choices_that_nobody_continues_have_no_next_state() -> None:
    linker = make_linker()
    for each in choices("red", "green"):
        linker.feed(each)
    assert {drop.reason for drop in of_kind(linker.flush(), Drop).values()} == {"no_next_state"}


@pytest.mark.parametrize("named", [{"response_id": "r1"}, {"turn_id": "a"}, {"session_id": "s0"}, {"session_id": "x1"}])
def test_feedback_settles_the_turn_it_names(named: dict[str, str]) -> None:
    linker = make_linker()
    identity = {"x-session-id": "x1"}
    linker.feed(capture("a", 1000, "q", response_id="r1", identity=identity))
    decisions = linker.feed(feedback("f", score=-1, text="Shorter.", **named))
    link = of_kind(decisions, Link)["a"]
    assert (json.loads(link.next_state), link.score) == ([{"role": "user", "content": "Shorter."}], -1)
    assert of_kind(decisions, Drop)["f"].reason == "feedback"
    after = linker.feed(capture("b", 2000, "q", "This is answer a.", "more", identity=identity))
    assert not of_kind(after, Link) and of_kind(after, Placed)["b"].continues == "a"
    again = linker.feed(feedback("g", score=1, response_id="r1"))
    assert not of_kind(again, Link) and "no open turn" in of_kind(again, Drop)["g"].detail


def test_feedback_on_a_session_means_its_newest_open_turn() -> None:
    linker = make_linker()
    linker.feed(capture("a", 1000, "q"))
    linker.feed(capture("b", 2000, "q", "This is answer a.", "more"))
    link = of_kind(linker.feed(feedback("f", session_id="s0", score=1)), Link)["b"]
    assert (link.next_state, link.score, link.turn_index) == (b"[]", 1, 1)


@pytest.mark.parametrize(
    "said",
    [
        {"response_id": "r1", "score": 1, "tenant": "other"},
        {"turn_id": "a", "score": 1, "tenant": "other"},
        {"session_id": "s0", "score": 1, "tenant": "other"},
        {"response_id": "r2", "score": 1},
        {"response_id": "r1"},
        {"score": 1},
        {"response_id": 7, "score": 1},
    ],
)
def test_feedback_that_names_nothing_open_of_its_tenant_is_dropped(said: dict[str, Any]) -> None:
    linker = make_linker()
    linker.feed(capture("a", 1000, "q", response_id="r1"))
    (drop,) = linker.feed(feedback("f", **said))
    assert isinstance(drop, Drop) and drop.reason == "feedback"
    assert linker.num_open == 1


def test_a_score_alone_keeps_the_next_state_that_is_known() -> None:
    linker = make_linker()
    linker.feed(capture("a", 1000, "q", response_id="r1"))
    unsure = capture("b", 2000, "q", {"role": "user", "content": "format error"})
    linker.feed(unsure)
    link = of_kind(linker.feed(feedback("f", response_id="r1", score=1)), Link)["a"]
    assert json.loads(link.next_state) == [{"role": "user", "content": "format error"}]


def test_a_link_to_what_may_be_a_side_call_waits_for_hindsight() -> None:
    linker = make_linker(settle_ms=2000, doubt_ms=30_000)
    more_tools = [*TOOLS, {"type": "function", "function": {"name": "g"}}]
    linker.feed(capture("a", 1000, "q", body={"tools": more_tools}))
    told = ("q", "This is answer a.")
    linker.feed(capture("flush", 2000, *told, "Store memories now.", body={"tools": TOOLS}))
    assert not of_kind(linker.tick(20_000), Link), "settle_ms is not enough here"
    decisions = linker.feed(capture("b", 21_000, *told, "and now?", body={"tools": more_tools}))
    assert json.loads(of_kind(decisions, Link)["a"].next_state) == [{"role": "user", "content": "and now?"}]
    assert of_kind(decisions, Placed)["flush"].side
    assert of_kind(linker.flush(), Drop)["flush"].reason == "side"


def test_words_alone_make_nobody_a_side_call() -> None:
    linker = make_linker()
    told = ("Tell of the fox", "This is answer a.")
    linker.feed(capture("a", 1000, "Tell of the fox", body={"tools": TOOLS}))
    assert not of_kind(linker.feed(capture("b", 2000, *told, "Summarise it.", body={"tools": TOOLS})), Link)
    fork = linker.feed(capture("c", 3000, *told, "And the crow?", body={"tools": TOOLS}))
    assert of_kind(fork, Placed)["c"].forked and not of_kind(fork, Link)
    more = (*told, "Summarise it.", "This is answer b.", "Thanks")
    decisions = linker.feed(capture("d", 4000, *more, body={"tools": TOOLS}))
    assert {turn_id: link.next_turn_id for turn_id, link in of_kind(decisions, Link).items()} == {"a": "b", "b": "d"}


def test_doubt_ends() -> None:
    linker = make_linker(doubt_ms=30_000)
    more_tools = [*TOOLS, {"type": "function", "function": {"name": "g"}}]
    linker.feed(capture("a", 1000, "q", body={"tools": more_tools}))
    linker.feed(capture("b", 2000, "q", "This is answer a.", "Now with less.", body={"tools": TOOLS}))
    assert list(of_kind(linker.tick(32_100), Link)) == ["a"]


def test_a_side_call_that_is_continued_was_a_turn() -> None:
    linker = make_linker()
    linker.feed(capture("a", 1000, "q", body={"tools": TOOLS}))
    told = ("q", "This is answer a.", "No tools now: what is it?")
    assert of_kind(linker.feed(capture("b", 2000, *told)), Placed)["b"].side
    decisions = linker.feed(capture("c", 3000, *told, "This is answer b.", "Good", body={"tools": TOOLS}))
    final = of_kind(decisions, Placed)
    assert not final["b"].side and final["b"].continues == "a"
    assert final["c"].session_id == final["b"].session_id
    assert [*of_kind(decisions, Link), *of_kind(linker.flush(), Link)] == ["a", "b"]


def test_what_a_compaction_shows_is_the_next_state() -> None:
    linker = make_linker()
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"path": "boxes"}'}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    opening = {"role": "user", "content": "Sort the boxes"}
    outcome = {"role": "tool", "tool_call_id": "call_1", "content": "40 boxes"}
    first = capture("a", 1000, opening, body={"tools": TOOLS})
    linker.feed(msgspec.structs.replace(first, answer=json.dumps(called).encode()))
    asked = [opening, called, outcome, {"role": "user", "content": "Write a summary."}]
    linker.feed(capture("s", 2000, *asked, answer="Half of the boxes are sorted."))
    after = [opening, {"role": "user", "content": "Summary: Half of the boxes are sorted."}]
    linker.feed(capture("b", 3000, *after, body={"tools": TOOLS}))
    assert json.loads(of_kind(linker.flush(), Link)["a"].next_state) == [outcome]


def test_session_done_settles_what_waits() -> None:
    linker = make_linker()
    linker.feed(capture("a", 1000, "q"))
    unsure = capture("b", 2000, "q", {"role": "user", "content": "format error"}, session_done=True)
    decisions = linker.feed(unsure)
    assert list(of_kind(decisions, Link)) == ["a"]
    assert of_kind(decisions, Drop)["b"].reason == "no_next_state"


def test_the_oldest_are_settled_when_too_many_are_remembered() -> None:
    linker = make_linker(max_requests=3)
    decisions = [decision for i in range(5) for decision in linker.feed(capture(str(i), 1000 + i, f"q{i}"))]
    assert list(of_kind(decisions, Drop)) == ["0", "1"] and len(linker) == 3


def test_apis_do_not_mix_unless_ids_join_them() -> None:
    for identity, joined in (({}, False), ({"x-session-id": "x1"}, True)):
        linker = make_linker()
        linker.feed(capture("a", 1000, "Tell me of the sea", identity=identity))
        told = ("Tell me of the sea", "This is answer a.", "more")
        decisions = linker.feed(capture("b", 2000, *told, api="messages", identity=identity))
        assert ("a" in of_kind(decisions, Link)) is joined


def test_ids_that_we_minted_name_the_answer() -> None:
    core = "hl" + "0" * 30
    linker = make_linker()
    for turn_id, minted in (("a", core), ("b", core[:-1] + "1")):
        made = capture(turn_id, 1000, "q", answer="same", api="responses", response_id=f"resp_{minted}")
        linker.feed(msgspec.structs.replace(made, request=json.dumps({"input": "q"}).encode()))
    items = [
        {"role": "user", "content": "q"},
        {"type": "message", "role": "assistant", "id": f"msg_{core[:-1]}1000", "content": "rewritten by the agent"},
        {"role": "user", "content": "go on"},
    ]
    later = capture("c", 2000, api="responses")
    decisions = linker.feed(msgspec.structs.replace(later, request=json.dumps({"input": items}).encode()))
    assert json.loads(of_kind(decisions, Link)["b"].next_state) == [{"role": "user", "content": "go on"}]


def test_a_prompt_of_ids_is_linked_and_has_no_words() -> None:
    linker = make_linker()

    def prompt(turn_id: str, start_ms: int, ids: list[int]) -> Capture:
        made = capture(turn_id, start_ms, api="generate", response_ids=pack([8, 9], "int32"))
        return msgspec.structs.replace(made, request=json.dumps({"input_ids": ids}).encode())

    linker.feed(prompt("a", 1000, [1, 2, 3]))
    assert of_kind(linker.feed(prompt("b", 2000, [1, 2, 3, 8, 9, 4])), Link)["a"].next_state == b"[]"


@pytest.mark.parametrize(("session", "linked"), [("header:x-session-id:s", "b"), (None, "a")])
@pytest.mark.parametrize("api", ["chat_completions", "generate"])
def test_of_equal_answers_the_newest_of_a_session_is_meant_and_else_the_first(
    session: str | None, linked: str, api: str
) -> None:
    linker = make_linker()
    found: dict[str, Any] = {}
    for turn_id, start_ms, said in (("a", 1000, ("q",)), ("b", 2000, ("q",)), ("c", 3000, ("q", "Yes.", "go on"))):
        made = capture(turn_id, start_ms, *said, answer="Yes.", session_key=session, api=api)
        if api == "generate":
            made = msgspec.structs.replace(made, request=json.dumps({"text": "".join(said)}).encode())
        found |= of_kind(linker.feed(made), Link)
    found |= of_kind(linker.flush(), Link)
    assert {turn_id: json.loads(link.next_state)[-1]["content"] for turn_id, link in found.items()} == {linked: "go on"}


@pytest.mark.parametrize("text", ["\x00 begins", "\x00U\x00 again", "ÿ", "\ufeffx"])
def test_a_prompt_of_any_text_is_linked(text: str) -> None:
    linker = make_linker()

    def prompt(turn_id: str, start_ms: int, words: str) -> Capture:
        made = capture(turn_id, start_ms, answer="Yes.", api="generate", response_ids=pack([8, 9], "int32"))
        return msgspec.structs.replace(made, request=json.dumps({"text": words}).encode())

    linker.feed(prompt("a", 1000, text))
    (link,) = of_kind(linker.feed(prompt("b", 2000, f"{text}Yes. Why?")), Link).values()
    assert (link.turn_id, json.loads(link.next_state)) == ("a", [{"role": "user", "content": " Why?"}])


@pytest.mark.parametrize(
    ("headers", "session", "branch", "sub_agent"),
    [
        ({"X-Session-Id": "a", "session-id": "b"}, "a", "", False),
        ({"x-claude-code-session-id": "b"}, "b", "", False),
        ({"session_id": "b", "x-client-request-id": "c"}, "b", "", False),
        ({"session-id": "r", "thread-id": "r"}, "r", "", False),
        ({"session-id": "r", "thread-id": "k", "x-codex-parent-thread-id": "r"}, "r", "k", True),
        ({"x-session-id": "c", "x-parent-session-id": "p"}, "c", "", True),
        (
            {"traceparent": "00-1", "user-agent": "x", "authorization": "Bearer k", "cookie": "session-id=1"},
            None,
            "",
            False,
        ),
    ],
)
def test_headers_of_agents(headers: dict[str, str], session: str | None, branch: str, sub_agent: bool) -> None:
    kept = identity_headers({name.lower().encode(): value.encode() for name, value in headers.items()})
    assert not {"authorization", "cookie", "user-agent", "traceparent"} & kept.keys()
    identity = read_identity(capture("x", 1, "q", identity=kept), BodyIds())
    assert (identity.session, identity.branch, identity.sub_agent) == (session, branch, sub_agent)


@pytest.mark.parametrize(
    ("body", "session", "native"),
    [
        ({"session_id": "a", "metadata": {"session_id": "b"}}, "a", None),
        ({"metadata": {"thread_id": "b"}, "conversation": "c"}, "b", None),
        ({"conversation": {"id": "c"}}, "c", None),
        ({"metadata": {"user_id": '{"device_id":"d","session_id":"s"}'}}, None, "s"),
        ({"metadata": {"user_id": "user_1_account_2_session_0a1b-2c3d"}}, None, "0a1b-2c3d"),
        ({"metadata": {"user_id": "{broken"}, "session_id": 7, "conversation": 8}, None, None),
        ({"user": "u", "prompt_cache_key": "p"}, None, None),
    ],
)
def test_ids_in_bodies(body: dict[str, Any], session: str | None, native: str | None) -> None:
    ids = read_body_ids(body)
    assert (ids.session, ids.native) == (session, native)


def test_user_and_cache_key_only_narrow_a_choice() -> None:
    linker = make_linker()
    for turn_id, name in (("a", "u1"), ("b", "u2")):
        linker.feed(capture(turn_id, 1000, "q", answer="same old answer", body={"user": name}))
    decisions = linker.feed(capture("c", 2000, "q", "same old answer", "x", body={"user": "u2"}))
    assert list(of_kind(decisions, Link)) == ["b"]


def test_a_request_kind_in_a_header_makes_a_side_call() -> None:
    linker = make_linker()
    metadata = {"x-codex-turn-metadata": '{"request_kind": "compaction", "turn_id": "1"}', "session-id": "s"}
    decisions = linker.feed(capture("a", 1000, "Summarise", identity=metadata))
    assert of_kind(decisions, Placed)["a"].side
    metadata = {"x-codex-turn-metadata": '{"request_kind": "turn"}', "session-id": "s"}
    assert not of_kind(linker.feed(capture("b", 2000, "Go", identity=metadata)), Placed)["b"].side
