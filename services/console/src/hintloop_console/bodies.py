"""What the API answers, as models: they describe it in the OpenAPI document, and tests hold answers against them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """Base of every body: what is not told here is not answered either."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(Body):
    """What is wrong, for people."""

    message: str


class ProblemReply(Body):
    """An answer that is none."""

    error: Problem


class Me(Body):
    """Who asks."""

    signed_in: bool
    can_write: bool
    password_set: bool
    """Whether anyone can sign in."""
    read_requires_password: bool
    policy: str
    version: str
    """Of this console."""


class SignIn(Body):
    """A password."""

    password: str = Field(max_length=1024)


class Holder(Body):
    """A consumer of a stream."""

    name: str
    pending: int
    idle_ms: int


class StreamState(Body):
    """A stream."""

    length: int
    pending: int
    holders: list[Holder]


class Weights(Body):
    """Versions of weights."""

    current: int | None
    updating: int | None


class Paused(Body):
    """Why training stands still."""

    reason: str
    since_ms: int


class Loop(Body):
    """The loop at one look. Counts are since the deployment began."""

    time_ms: int
    funnel: dict[str, int]
    dropped: dict[str, int]
    """By `stage:reason`."""
    streams: dict[str, StreamState]
    weights: Weights
    trainer: dict[str, str]
    engines: dict[str, str]
    linker: dict[str, str]
    paused: Paused | None
    rates_per_minute: dict[str, float]
    """By funnel step, and `dropped`, over the last minute."""
    away: str | None
    """Why Redis does not answer now; the rest is the last look then."""


class SessionRow(Body):
    """A session."""

    session_id: str
    tenant: str
    turns: int
    first_ms: int
    last_ms: int
    score_mean: float | None
    last_text: str


class Sessions(Body):
    """A page of sessions, those with the newest turn first."""

    rows: list[SessionRow]
    next: str | None
    total: int


class TurnRow(Body):
    """A turn as lists show it."""

    turn_id: str
    session_id: str | None
    turn_index: int | None
    tenant: str
    time_ms: int
    stage: str
    """`linked`, `judged`, `scored`, `trained` or `dropped`."""
    score: int | None
    hint: str | None
    drop_stage: str | None
    reason: str | None
    tokens: int | None
    advantage_mean: float | None
    step: int | None
    version: int | None
    """Of the weights that answered."""
    text: str


class Turns(Body):
    """A page of turns, newest first."""

    rows: list[TurnRow]
    next: str | None
    total: int


class Vote(Body):
    """A judge's vote."""

    score: int | None
    hint: str | None
    failed: str | None


class Candidate(Body):
    """A token that the teacher would have said."""

    id: int
    text: str | None
    logprob: float | None


class Token(Body):
    """A token of the answer; log-probabilities in nats, `null` where there is none."""

    id: int
    text: str | None
    behaviour: float | None
    student: float | None
    teacher: float | None
    advantage: float | None
    top: list[Candidate]


class DropNote(Body):
    """Why a turn did not become a gradient."""

    stage: str
    reason: str
    detail: str


class JudgeNote(Body):
    """Who judged."""

    backend: str
    model: str | None


class Span(Body):
    """Tokens `[start, end)` were made by `version`."""

    version: int
    start: int
    end: int


class Made(Body):
    """How the answer was made."""

    engine: str
    api: str
    finish_reason: str | None
    behaviour_space: str
    version_oldest: int
    version_newest: int
    prompt_tokens: int
    segment: int
    feedback_score: int | None


class Turn(Body):
    """A turn with everything that is known of it."""

    turn_id: str
    session_id: str | None
    turn_index: int | None
    tenant: str
    time_ms: int
    stage: str
    score: int | None
    hint: str | None
    drop_stage: str | None
    reason: str | None
    advantage_mean: float | None
    step: int | None
    version: int | None
    text: str
    drop: DropNote | None
    messages: list[Any]
    tools: list[Any] | None
    answer: dict[str, Any] | None
    next_state: list[Any]
    rendering: dict[str, Any]
    votes: list[Vote]
    judge: JudgeNote | None
    teacher_model: str | None
    spans: list[Span]
    sampling: dict[str, Any] | None
    made: Made | None
    tokens: list[Token]


class StepRow(Body):
    """A step."""

    step: int
    version: int | None
    time_ms: int
    given_up: bool
    """Training went back to before it."""
    figures: dict[str, float]


class Steps(Body):
    """A page of steps, oldest first."""

    rows: list[StepRow]
    next: str | None


class Advantages(Body):
    """Advantages of tokens by bin; the first and the last bin hold everything beyond."""

    edges: list[float]
    counts: list[int]
    tokens: int
    share_positive: float | None
    share_negative: float | None
    share_above_10: float | None
    """Of magnitudes."""


class Gate(Body):
    """What the release gate said."""

    outcome: str
    reasons: list[str]
    figures: dict[str, float]


class VersionRow(Body):
    """A version."""

    version: int
    step: int
    parent: int | None
    time_ms: int
    run: str
    weights_hash: str
    reason: str
    released: bool
    current: bool
    can_go_back: bool
    """Whether the trainer said that it can go back to it."""
    gate: Gate | None


class Versions(Body):
    """Versions, newest first."""

    rows: list[VersionRow]


class DropBucket(Body):
    """Drops of one stretch of time, which begins at `time_ms`."""

    time_ms: int
    counts: dict[str, int]


class DropExample(Body):
    """A drop."""

    turn_id: str
    stage: str
    reason: str
    detail: str
    time_ms: int
    tenant: str


class Drops(Body):
    """Drops of the last minutes."""

    reasons: dict[str, int]
    """Totals by `stage:reason`."""
    series: list[DropBucket]
    examples: list[DropExample]


class Explanation(Body):
    """What it usually comes from, and what to change."""

    cause: str
    fix: str


class AlarmRow(Body):
    """An alarm; `until_ms` is null while it stands."""

    cause: str
    since_ms: int
    until_ms: int | None
    seen: str
    grave: bool
    evidence: dict[str, float | str]
    explanation: Explanation | None


class Alarms(Body):
    """Alarms that stand, and those that ended, newest first."""

    looked_ms: int | None
    """When somebody looked last; null: nobody looks, so nothing is known."""
    active: list[AlarmRow]
    past: list[AlarmRow]


class Doctor(Body):
    """Doctor's last report."""

    report: Any
    """As `hintloop doctor --json` gives it; null before the first."""
    running: bool
    available: bool
    """Whether it can be run from here."""
    started_ms: int | None
    ended_ms: int | None
    exit_code: int | None
    error: str | None


class GoBack(Body):
    """Which version to go back to."""

    version: int = Field(ge=1, le=2**53)


class Request(Body):
    """A request to the trainer."""

    request_id: str
    state: str
    """`waiting`, `accepted`, `done` or `refused`."""
    detail: str
    version: int | None
    """The one released by it."""


class Status(Body):
    """Whether the console works."""

    status: str
    detail: str = ""
