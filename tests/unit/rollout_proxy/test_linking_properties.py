"""What holds for any traffic: each capture one fate, each answer linked once, nobody's traffic joined to another's."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hintloop_contract.messages import Capture
from hintloop_rollout_proxy.linking import Decision, Drop, Link, Linker, LinkerOptions, Placed
from hintloop_rollout_proxy.linking.cases import read_case
from hintloop_rollout_proxy.linking.report import report_on
from hypothesis import given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Cases that tell sessions apart by who asks, by ids or by the times between requests, which mixing takes away.
APART = ("identical", "repeated_ids", "parallel", "overlap", "opencode_title", "truncation_to_the_last")
#: Variants of one conversation; one of each family is mixed in.
FAMILIES = ("claude_code_compaction", "opencode_summary")

texts = st.sampled_from(["go", "ok", "Done.", "it is nine metres long", "<think>x</think>Four.", "", "ähm 🌊", "no"])


@st.composite
def conversations(draw: st.DrawFn) -> list[Capture]:
    """Captures of a few conversations, shuffled; they share texts, and some fail, are cut or are marked."""
    captures: list[Capture] = []
    for who in range(draw(st.integers(1, 4))):
        messages: list[dict[str, Any]] = [{"role": "user", "content": draw(texts)}]
        clock = draw(st.integers(0, 5)) * 1000
        for _ in range(draw(st.integers(1, 5))):
            status = draw(st.sampled_from(["complete"] * 4 + ["aborted", "refused"]))
            said = {"role": "assistant", "content": draw(texts)}
            captures.append(
                Capture(
                    turn_id=f"{who}-{len(captures)}",
                    tenant=f"t{who % 2}",
                    credential=f"c{who}",
                    session_key=draw(st.sampled_from([None, "header:x:1"])),
                    engine="vllm",
                    engine_url="",
                    request=json.dumps({"messages": messages}).encode(),
                    answer=None if status == "refused" else json.dumps(said).encode(),
                    status=status,
                    start_ms=clock,
                    end_ms=clock + draw(st.integers(1, 400)),
                    turn_type=draw(st.sampled_from([None] * 6 + ["main", "side"])),
                    session_done=draw(st.integers(0, 9)) == 9,
                    problem={"aborted": "aborted", "refused": "upstream_error"}.get(status),
                )
            )
            clock += draw(st.sampled_from([500, 1000, 400_000]))
            if status == "complete" and draw(st.booleans()):
                messages = [*messages, said, {"role": "user", "content": draw(texts)}]
    return draw(st.permutations(captures))


def run(captures: list[Capture]) -> list[Decision]:
    numbers = count()
    linker = Linker(LinkerOptions(), make_id=lambda: f"s{next(numbers)}")
    decisions: list[Decision] = []
    for capture in captures:
        decisions += linker.feed(capture)
        decisions += linker.tick(capture.end_ms)
    decisions += linker.flush()
    assert len(linker) == 0
    assert not linker._board.index._buckets and not linker._board.sessions and not linker._board.orphans
    return decisions


@settings(max_examples=150, deadline=None)
@given(conversations())
def test_each_capture_has_one_fate_and_nothing_is_joined_across_clients(captures: list[Capture]) -> None:
    decisions = run(captures)
    fates = [decision.turn_id for decision in decisions if isinstance(decision, Link | Drop)]
    assert sorted(fates) == sorted(capture.turn_id for capture in captures)
    by_id = {capture.turn_id: capture for capture in captures}
    for decision in decisions:
        if isinstance(decision, Link):
            pair = by_id[decision.turn_id], by_id[decision.next_turn_id]
            assert pair[0].credential == pair[1].credential and pair[0].tenant == pair[1].tenant
            assert pair[0].problem is None and pair[0].end_ms <= pair[1].start_ms + 50
        if isinstance(decision, Placed) and decision.continues is not None:
            assert by_id[decision.continues].credential == by_id[decision.turn_id].credential
    final = {decision.turn_id: decision for decision in decisions if isinstance(decision, Placed)}
    owners: dict[str, set[str]] = {}
    for turn_id, place in final.items():
        if not place.side:
            owners.setdefault(place.session_id, set()).add(by_id[turn_id].credential)
    assert all(len(found) == 1 for found in owners.values())


@settings(max_examples=50, deadline=None)
@given(conversations())
def test_linking_is_a_function_of_the_captures(captures: list[Capture]) -> None:
    assert run(captures) == run(captures)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["chat_completions", "messages", "responses", "completions", "generate", "feedback", "other"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["role", "content", "type", "text", "tool_calls", "function", "id", "input", "output", "call_id"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    ),
)
def test_any_json_is_read_or_dropped(api: str, content: Any) -> None:
    body = {"messages": content, "input": content, "prompt": content, "tools": content, "metadata": content}
    capture = Capture(
        turn_id="x",
        engine="vllm",
        engine_url="",
        api=api,
        request=json.dumps(body).encode(),
        answer=json.dumps({"role": "assistant", "content": content, "tool_calls": content}).encode(),
        start_ms=0,
        end_ms=1,
    )
    fates = [decision for decision in run([capture]) if not isinstance(decision, Placed)]
    assert [fate.turn_id for fate in fates] == ["x"]


def _mixable() -> list[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
    found, seen = [], set()
    for path in sorted(FIXTURES.glob("*cases/*.json")):
        case = json.loads(path.read_text())
        family = next((family for family in FAMILIES if case["name"].startswith(family)), case["name"])
        if family in seen or any(word in case["name"] for word in APART):
            continue
        seen.add(family)
        found.append((case["name"], case["requests"], case["expected"]))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "no_ids"])
def test_cases_mixed_at_random_are_read_as_alone(seed: int, with_ids: bool) -> None:
    cases, chance = _mixable(), random.Random(seed)
    order = [number for number, (_, requests, _) in enumerate(cases) for _ in requests]
    chance.shuffle(order)
    places: list[tuple[int, int]] = []
    requests, position = [], [0] * len(cases)
    for number in order:
        requests.append(_renamed(cases[number][1][position[number]], number, with_ids))
        places.append((number, position[number]))
        position[number] += 1
    _, captures = read_case(json.dumps({"requests": requests}).encode(), "mixed")
    report = report_on("mixed", captures, LinkerOptions(max_turns_per_session=1000))
    across = [(cases[places[i][0]][0], cases[places[k][0]][0]) for i, k in report.links if places[i][0] != places[k][0]]
    assert across == []
    for number, (name, _, expected) in enumerate(cases):
        if not with_ids and name in ("marked_side_calls_and_main_calls", "sdk_retry_of_an_answer_that_never_arrived"):
            continue
        assert _of_case(number, msgspec.to_builtins(report), places) == expected, name


def _renamed(request: dict[str, Any], number: int, with_ids: bool) -> dict[str, Any]:
    """A request whose ids are its case's own, or that has none but those of responses."""
    request = json.loads(json.dumps(request))
    body, reply, headers = request["body"], request["reply"], request["headers"]
    if not with_ids:
        body.pop("metadata", None)
        body.pop("prompt_cache_key", None)
        headers = {}
    words = ("type", "count", "subagent")
    request["headers"] = {
        name: value if any(word in name.lower() for word in words) else f"{value}-{number}"
        for name, value in headers.items()
    }
    for holder, member in ((reply, "id"), (body, "previous_response_id")):
        if holder.get(member):
            holder[member] += f"-{number}"
    return request


def _of_case(number: int, report: dict[str, Any], places: list[tuple[int, int]]) -> dict[str, Any]:
    """What the report says about one case."""

    def own(indices: list[int]) -> list[int]:
        return [places[i][1] for i in indices if places[i][0] == number]

    sessions = [own(session) for session in report["sessions"]]
    links = [own(link) for link in report["links"]]
    return {
        "sessions": sorted(session for session in sessions if session),
        "links": sorted(link for link in links if link),
        "side": own(report["side"]),
        "retries": own(report["retries"]),
    }


def test_an_answer_that_comes_in_late_is_linked_all_the_same() -> None:
    def capture(turn_id: str, start_ms: int, *said: str) -> Capture:
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
        return Capture(
            turn_id=turn_id,
            engine="vllm",
            engine_url="",
            request=json.dumps({"messages": messages}).encode(),
            answer=json.dumps({"role": "assistant", "content": f"answer {turn_id}"}).encode(),
            start_ms=start_ms,
            end_ms=start_ms + 10,
        )

    first = capture("a", 1000, "q")
    second = capture("b", 2000, "q", "answer a", "more")
    third = capture("c", 3000, "q", "answer a", "more", "answer b", "yet more")
    decisions = run([second, third, first])
    links = {decision.turn_id: decision.next_turn_id for decision in decisions if isinstance(decision, Link)}
    assert links == {"a": "b", "b": "c"}
    final = {decision.turn_id: decision for decision in decisions if isinstance(decision, Placed)}
    assert len({place.session_id for place in final.values()}) == 1
    assert [final[turn_id].turn_index for turn_id in "abc"] == [0, 1, 2]
