"""Faults of the judge: its key, its model, its words, and what is done without a hint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .agent import Day
from .deployment import JUDGE_KEY, Deployment
from .fault import Fault, Injector
from .services import Given

#: Passes for advice, and says nothing about any answer in particular.
PLATITUDES = (
    "Please do better next time and be more careful.",
    "Think step by step and pay close attention to what the user really wants.",
)


def judging(
    values: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    conversations: int = 3,
    settles: bool = True,
    env: Mapping[str, str] | None = None,
    **habits: Any,
) -> Injector:
    """The judge's endpoint has these habits, judge and teacher these keys, and agents talk meanwhile."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        given = Given(env=env or {})
        if values:
            given = stack.overlay("judge", values).and_also(given)
        # What an endpoint can do is asked for once.
        restarted = ["prm"] if given != Given() or "takes_schema" in habits else []
        with stack.traffic.put_aside(fresh=True), stack.judge.behaving(**habits):
            with stack.with_given(given, *restarted):
                stack.talk(conversations, Day(turns=2))
                if settles:
                    stack.quiet()
                else:
                    stack.wait_for("a linked turn", lambda: stack.count("linked") > 0)
                yield

    return inject


UNHINTED = {"opd": {"drop_sample_without_hint": False}}

FAULTS = [
    Fault(
        "judge key wrong",
        judging(settles=False, key="a-new-key-that-nobody-was-told"),
        judging(settles=False, env={JUDGE_KEY: "mistyped"}, refusal=403),
    ),
    Fault(
        "judge model missing",
        judging({"prm": {"judge_model": "judge-lrage"}}, settles=False),
        judging(settles=False, models=("judge-small",), unknown_model=404),
    ),
    Fault("empty hints", judging(reply="[HINT_START][HINT_END]"), judging(reply='{"hint": ""}', takes_schema=True)),
    Fault("platitude hints", judging(hint=PLATITUDES[0]), judging(hint=PLATITUDES[1])),
    Fault("`hint_max_tokens` cuts every vote", judging({"prm": {"hint_max_tokens": 6}}), judging(thinks=600)),
    Fault(
        "`drop_sample_without_hint = false` with failing hints",
        judging(UNHINTED, conversations=3, reply="I would rather not say."),
        judging(UNHINTED, conversations=3, hint="Shorter."),
    ),
]
