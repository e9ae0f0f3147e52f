"""Generated conversations between an agent and a scripted engine: what is asked, said, and goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .answers import STREAM_FAULTS, Call, Fault, Scripted
from .wire import CHAT, COMPLETIONS, GENERATE

Json = dict[str, Any]
#: Faults after which an agent has no answer that it could go on with.
HURTING = frozenset((Fault.TRUNCATED, Fault.DISCONNECTED, *STREAM_FAULTS))
MOST_TOKENS = 120
NAMES = ("get_weather", "search", "записать", "读")


@dataclass(frozen=True, slots=True)
class Step:
    """One request: what the engine says to it, how it is asked, and what follows."""

    said: tuple[Scripted, ...]
    stream: bool
    asks: tuple[str, ...]
    pieces: tuple[int, ...]
    chosen: int
    words: str
    results_only: bool
    thinks_aloud: bool

    @property
    def fault(self) -> Fault | None:
        """What is wrong with the answer: nothing, where only an answer in events can have the fault."""
        found = next((one.fault for one in self.said if one.fault), None)
        return None if found in STREAM_FAULTS and not self.stream else found

    @property
    def hurts(self) -> bool:
        """Whether the agent has to ask again."""
        return self.fault in HURTING


@dataclass(frozen=True, slots=True)
class Plan:
    """A conversation."""

    kind: str
    path: str
    system: str
    opening: str
    steps: tuple[Step, ...]
    named: bool
    by_ids: bool


letters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from('aé字🙂👩\u200d\u0000\u001f\u2028"\\/{}[]:,\n\r\t <>'),
)
texts = st.text(letters, max_size=14)
long_texts = st.builds(lambda text, times: text * times, st.text(letters, min_size=1, max_size=12), st.integers(2, 600))
contents = st.one_of(texts, texts, texts, st.just(""), long_texts)
#: Values with halves of surrogate pairs: as JSON text they are escapes, which are no characters of the answer.
values = st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False), st.none(), st.just("\ud83d"))
arguments = st.one_of(
    st.dictionaries(st.text(max_size=5), values, max_size=3).map(json.dumps),
    st.dictionaries(texts, texts, max_size=2).map(lambda found: json.dumps(found, ensure_ascii=False)),
    st.sampled_from(("", '{"city": ', "[]", "null")),
)
calls = st.lists(st.builds(Call, st.sampled_from(NAMES), arguments, st.just("")), max_size=3).map(tuple)
faults = st.one_of(st.none(), st.none(), st.sampled_from(list(Fault)))


def _asks(kind: str, path: str) -> tuple[str, ...]:
    """What a client may itself ask for."""
    if path == GENERATE:
        return ("return_logprob", "return_prompt_token_ids")
    usage = ("include_usage", "continuous_usage_stats") if kind == "vllm" else ("include_usage",)
    if path == COMPLETIONS or kind == "vllm":
        return ("logprobs", "return_token_ids", *usage)
    late = ("return_input_ids_in_sglext", "return_output_ids_in_sglext")
    return ("logprobs", "return_token_ids", "return_prompt_token_ids", "return_meta_info", *late, *usage)


@st.composite
def said_by(draw: st.DrawFn, path: str) -> tuple[Scripted, ...]:
    """The choices of one answer; at most one of them has a fault."""
    count = draw(st.sampled_from((1, 1, 1, 2, 3)))
    together = draw(st.sampled_from((1, 1, 2, 5)))
    struck, fault, at = draw(st.integers(0, count - 1)), draw(faults), draw(st.floats(0, 0.999))
    choices = []
    for index in range(count):
        content = draw(contents) + (f" #{index}" if count > 1 else "")
        more: Json = {"reasoning": draw(texts), "calls": draw(calls)} if path == CHAT else {}
        size = len(content) + sum(len(call.arguments) + 60 for call in more.get("calls", ()))
        piece = max(draw(st.sampled_from((1, 2, 4, 9, 33))), size // MOST_TOKENS)
        says = bool(content or more.get("reasoning") or more.get("calls"))
        finish = draw(st.sampled_from(("stop", "stop", "length"))) if says else "stop"
        one = Scripted(content, finish=finish, piece=piece, together=together, at=at, **more)
        choices.append(replace(one, fault=fault) if index == struck else one)
    return tuple(choices)


@st.composite
def steps(draw: st.DrawFn, kind: str, path: str) -> Step:
    """One request and its answer."""
    said = draw(said_by(path))
    return Step(
        said=said,
        stream=draw(st.booleans()),
        asks=tuple(name for name in _asks(kind, path) if draw(st.integers(0, 3)) == 0),
        pieces=draw(st.one_of(st.just(()), st.lists(st.integers(1, 700), min_size=1, max_size=4).map(tuple))),
        chosen=draw(st.integers(0, len(said) - 1)),
        words=draw(texts),
        results_only=draw(st.booleans()),
        thinks_aloud=draw(st.booleans()),
    )


@st.composite
def plans(draw: st.DrawFn, kind: str) -> Plan:
    """One conversation with engine ``kind``."""
    paths = (CHAT, CHAT, CHAT, COMPLETIONS) + ((GENERATE,) if kind == "sglang" else ())
    path = draw(st.sampled_from(paths))
    return Plan(
        kind=kind,
        path=path,
        system=draw(st.one_of(st.just(""), texts)),
        opening=draw(texts),
        steps=tuple(draw(st.lists(steps(kind, path), min_size=1, max_size=5))),
        named=draw(st.integers(0, 4)) == 0,
        by_ids=draw(st.integers(0, 3)) == 0,
    )


def draw_plans(kind: str, num_requests: int, number: int) -> list[Plan]:
    """Conversations with at least ``num_requests`` requests; the same for the same ``number``."""
    found: list[Plan] = []

    def collect() -> int:
        batch: list[Plan] = []

        @seed(number + len(found))
        @settings(
            max_examples=min(200, num_requests // 3),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(plans(kind))
        def one(plan: Plan) -> None:
            batch.append(plan)

        run: Callable[[], None] = one
        run()
        found.extend(batch)
        return sum(len(plan.steps) for plan in found)

    while collect() < num_requests:
        pass
    kept, count = [], 0
    for plan in found:
        if count >= num_requests:
            break
        kept.append(plan)
        count += len(plan.steps)
    return kept
