"""Recorded turns: one JSON object a line, to be read by people and programs and run again by `hintloop replay`.

Owns the form (`docs/replay.md`), its two directions and its checks; where lines come from is others' business.
Legend: P = prompt tokens, T = response tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from hintloop_contract.errors import MessageError
from hintloop_contract.messages import (
    DropReason,
    Judgement,
    LinkedTurn,
    Sample,
    Sampling,
    Stage,
    TurnRecord,
    VersionSpan,
)
from hintloop_contract.tensors import PackedArray, pack, unpack

#: Version of the form. A field is only ever added, with a default and a version of its own.
RECORDED_VERSION = 1
#: Longest line that is read, bytes.
MAX_LINE_BYTES = 256 * 1024 * 1024
#: At or below this a log-probability is an engine's stand-in for one that is missing.
PLACEHOLDER = -9999.0
BEHAVIOUR_SPACES = ("raw", "after_temperature", "processed")
ENGINES = ("vllm", "sglang")

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


_NULL = msgspec.Raw(b"null")


class RecordedSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a turn stood. Example: ``RecordedSession(session_id="0193…", turn_index=0)``."""

    session_id: str
    turn_index: int = 0
    segment: int = 0
    tenant: str = "default"
    api: str = "chat_completions"


class RecordedVersions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weight versions that made the answer. Example: ``RecordedVersions(oldest=3, newest=3)``."""

    oldest: int
    newest: int
    spans: tuple[VersionSpan, ...] = ()


class RecordedSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the teacher made of the turn when it was recorded; candidates are not kept.

    Example: ``RecordedSample(score=-1, hint="One short sentence.", teacher_logprobs=[-0.1], teacher_model="prm")``.
    """

    score: int | None = None
    hint: str | None = None
    teacher_logprobs: list[float | None] | None = None
    """``[T]``, nats at temperature 1; null where the teacher gave no number."""
    teacher_model: str | None = None
    num_hinted_prompt_tokens: int | None = None


class RecordedTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn with all that judge, teacher and trainer need of it.

    ``prompt_ids``, ``response_ids`` and ``logprobs`` are the engine's own, or ``None`` where they were not recorded:
    such a turn can be judged, and not trained. Raw fields are JSON as the agent and the engine sent it.
    Example: a line of ``hintloop replay export``.
    """

    v: int = RECORDED_VERSION
    turn_id: str
    session: RecordedSession
    messages: msgspec.Raw
    """JSON array: the messages as sent."""
    tools: msgspec.Raw = _NULL
    """JSON array, or null."""
    rendering: msgspec.Raw = msgspec.Raw(b"{}")
    """JSON object: what else shapes the rendering (``chat_template_kwargs``, …)."""
    answer: msgspec.Raw
    """JSON assistant message."""
    next_state: msgspec.Raw = msgspec.Raw(b"[]")
    """JSON array: every message after the answer."""
    prompt_ids: list[int] | None = None
    """``[P]``, exactly as served."""
    response_ids: list[int] | None = None
    """``[T]``, the end-of-turn token included."""
    logprobs: list[float | None] | None = None
    """``[T]``, nats, in ``behaviour_space``."""
    behaviour_space: str = "raw"
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    finish_reason: str | None = None
    engine: str = "vllm"
    """Dialect of the engine that answered."""
    versions: RecordedVersions | None = None
    captured_ms: int = 0
    feedback_score: int | None = None
    judgement: Judgement | None = None
    """What the judge said when the turn was recorded."""
    sample: RecordedSample | None = None
    source: str = "hintloop"
    """Where it was recorded: ``hintloop`` or ``openclaw-rl``."""


class RecordedTurnError(MessageError):
    """A line is no recorded turn. ``field`` names the place, ``fix`` what to change."""

    def __init__(self, field: str, message: str, fix: str) -> None:
        super().__init__(f"{field or 'line'}: {message}; {fix}")
        self.field = field
        self.message = message
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a recorded turn cannot be trained, as the live loop would drop it."""

    stage: Stage
    reason: DropReason
    detail: str


def recorded(
    turn: LinkedTurn, record: TurnRecord, judgement: Judgement | None = None, sample: Sample | None = None
) -> RecordedTurn:
    """A linked turn as it is recorded, with what judge and teacher said of it so far.

    Raises:
        MessageError: an array of the record is damaged.
    """
    return RecordedTurn(
        turn_id=turn.turn_id,
        session=RecordedSession(
            session_id=turn.session_id,
            turn_index=turn.turn_index,
            segment=turn.segment,
            tenant=turn.tenant,
            api=turn.api,
        ),
        messages=_raw(record.messages),
        tools=_NULL if record.tools is None else _raw(record.tools),
        rendering=_raw(record.rendering),
        answer=_raw(record.answer),
        next_state=_raw(record.next_state),
        prompt_ids=_ids(record.prompt_ids),
        response_ids=_ids(record.response_ids),
        logprobs=_floats(record.logprobs),
        behaviour_space=turn.behaviour_space,
        sampling=turn.sampling,
        finish_reason=turn.finish_reason,
        engine=turn.engine,
        versions=RecordedVersions(oldest=turn.version_oldest, newest=turn.version_newest, spans=turn.spans),
        captured_ms=turn.captured_ms,
        feedback_score=turn.feedback_score,
        judgement=judgement,
        sample=None if sample is None else _recorded_sample(sample),
    )


def _recorded_sample(sample: Sample) -> RecordedSample:
    teacher = sample.teacher_logprobs
    return RecordedSample(
        score=sample.score,
        hint=sample.hint,
        teacher_logprobs=None if teacher is None else _floats(teacher),
        teacher_model=sample.teacher_model,
        num_hinted_prompt_tokens=sample.num_hinted_prompt_tokens,
    )


def _raw(data: bytes) -> msgspec.Raw:
    # Line breaks of JSON stand between its tokens alone: in strings they are escaped.
    return msgspec.Raw(data.replace(b"\n", b" ").replace(b"\r", b" "))


def is_null(raw: msgspec.Raw) -> bool:
    """Whether JSON is null."""
    return bytes(raw).strip() == b"null"


def _ids(packed: PackedArray) -> list[int]:
    found: list[int] = unpack(packed).tolist()
    return found


def _floats(packed: PackedArray) -> list[float | None]:
    # Nine digits tell every float32 apart. JSON has no NaN: what is none is null, and missing.
    return [float(f"{value:.9g}") if value - value == 0 else None for value in unpack(packed).tolist()]


def encode_line(turn: RecordedTurn) -> bytes:
    """``turn`` as one line, its line break included."""
    return msgspec.json.encode(turn) + b"\n"


_DECODER = msgspec.json.Decoder(RecordedTurn)


def decode_line(line: bytes) -> RecordedTurn:
    """Read one line and check it.

    Raises:
        RecordedTurnError: it is no recorded turn, or contradicts itself; names the field and the fix.
    """
    try:
        turn = _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise _explained(error, line) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RecordedTurnError("", f"it is no JSON: {error}", "write one whole JSON object a line") from error
    for problem in _contradictions(turn):
        raise problem
    return turn


def _explained(error: msgspec.ValidationError, line: bytes) -> RecordedTurnError:
    version = _version_of(line)
    if isinstance(version, int) and version > RECORDED_VERSION:
        message = f"{version} was written by a newer Hintloop, this one reads up to {RECORDED_VERSION}"
        return RecordedTurnError("v", message, "upgrade it, or export again")
    found = _PATH.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    named = re.search(r"field `([^`]+)`", what)
    field = ".".join(part for part in (path, named[1] if named else "") if part)
    missing = "missing required" in what
    fix = "add it" if missing else "remove it" if "unknown field" in what else "correct it as docs/replay.md says"
    return RecordedTurnError(field, what, fix)


def _version_of(line: bytes) -> Any:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found.get("v") if isinstance(found, dict) else None


def _contradictions(turn: RecordedTurn) -> Iterator[RecordedTurnError]:
    if not 1 <= turn.v <= RECORDED_VERSION:
        yield RecordedTurnError("v", f"{turn.v} is no known version", f"write {RECORDED_VERSION}")
    for name in ("turn_id", "session.session_id"):
        value = turn.turn_id if name == "turn_id" else turn.session.session_id
        if not value or len(value) > 200 or not value.isprintable():
            yield RecordedTurnError(name, f"{value[:40]!r} is no id", "give 1 to 200 printable characters")
    yield from _raw_fields(turn)
    yield from _token_fields(turn)
    yield from _teacher_fields(turn)
    if turn.behaviour_space not in BEHAVIOUR_SPACES:
        known = ", ".join(BEHAVIOUR_SPACES)
        yield RecordedTurnError("behaviour_space", f"{turn.behaviour_space!r} is unknown", f"write one of {known}")
    if turn.engine not in ENGINES:
        yield RecordedTurnError("engine", f"{turn.engine!r} is unknown", f"write one of {', '.join(ENGINES)}")
    if turn.versions is not None and turn.versions.oldest > turn.versions.newest:
        what = f"oldest {turn.versions.oldest} is above newest {turn.versions.newest}"
        yield RecordedTurnError("versions", what, "exchange them")
    if turn.feedback_score not in (None, -1, 0, 1):
        yield RecordedTurnError("feedback_score", f"{turn.feedback_score} is no score", "write 1, 0, -1 or null")


def _raw_fields(turn: RecordedTurn) -> Iterator[RecordedTurnError]:
    fields: tuple[tuple[str, msgspec.Raw, type], ...] = (
        ("messages", turn.messages, list),
        ("tools", turn.tools, list),
        ("rendering", turn.rendering, dict),
        ("answer", turn.answer, dict),
        ("next_state", turn.next_state, list),
    )
    for name, raw, kind in fields:
        if name == "tools" and is_null(raw):
            continue
        try:
            value = json.loads(bytes(raw))
        except (ValueError, RecursionError) as error:
            yield RecordedTurnError(name, f"it is no JSON: {error}", "correct it")
            continue
        called = "an array" if kind is list else "an object"
        if not isinstance(value, kind):
            yield RecordedTurnError(name, f"{type(value).__name__} stands where {called} is expected", f"give {called}")
        elif isinstance(value, list) and not all(isinstance(item, dict) for item in value):
            yield RecordedTurnError(name, "an item is no object", "give objects alone")
        elif name in ("messages", "next_state"):
            yield from _message_problems(name, value)


def _message_problems(name: str, items: Any) -> Iterator[RecordedTurnError]:
    """Items of a chat have a role; those of the Responses API may have a type in its place."""
    for index, item in enumerate(items):
        if not any(isinstance(item.get(key), str) and item[key] for key in ("role", "type")):
            what = "it is missing, or no text"
            yield RecordedTurnError(f"{name}[{index}].role", what, "give each message its role, as it was sent")
        content = item.get("content")
        if content is not None and not isinstance(content, str | list):
            what = f"{type(content).__name__} {content!r} is no text"
            yield RecordedTurnError(f"{name}[{index}].content", what, "give a string, a list of parts, or null")


def _token_fields(turn: RecordedTurn) -> Iterator[RecordedTurnError]:
    for name, ids in (("prompt_ids", turn.prompt_ids), ("response_ids", turn.response_ids)):
        if ids is not None and any(not 0 <= token < 2**31 for token in ids):
            yield RecordedTurnError(name, "an id is negative or above 2^31 - 1", "give the engine's own token ids")
    if turn.logprobs is None:
        return
    if turn.response_ids is None:
        yield RecordedTurnError("response_ids", "logprobs are given and they are not", "give both or neither")
    elif len(turn.response_ids) != len(turn.logprobs):
        what = f"{len(turn.logprobs)} values for {len(turn.response_ids)} response_ids"
        yield RecordedTurnError("logprobs", what, "give one a token, as the engine said them; nothing is padded or cut")
    worst = next((value for value in turn.logprobs if value is not None and not value <= 0), None)
    if worst is not None:
        fix = "give the engine's own values, or null where one is missing"
        yield RecordedTurnError("logprobs", f"{worst} is no log-probability", fix)


def _teacher_fields(turn: RecordedTurn) -> Iterator[RecordedTurnError]:
    values = None if turn.sample is None else turn.sample.teacher_logprobs
    if values is None:
        return
    name = "sample.teacher_logprobs"
    if turn.response_ids is None:
        yield RecordedTurnError("response_ids", f"{name} are given and they are not", "give both or neither")
    elif len(values) != len(turn.response_ids):
        what = f"{len(values)} values for {len(turn.response_ids)} response_ids"
        yield RecordedTurnError(name, what, "give one a token, null where one is missing; nothing is padded or cut")


def lack(turn: RecordedTurn) -> Lack | None:
    """Why the turn cannot be trained, or ``None``. Whether its signal suffices, judge and teacher say."""
    if turn.finish_reason == "abort":
        return Lack(Stage.LINK, DropReason.ABORTED, "finish_reason is abort")
    if json.loads(bytes(turn.next_state)) == [] and turn.feedback_score is None:
        return Lack(Stage.LINK, DropReason.NO_NEXT_STATE, "next_state is empty")
    if turn.prompt_ids is None or turn.response_ids is None:
        return Lack(Stage.CAPTURE, DropReason.IDS_MISSING, "no token ids were recorded; the turn can be judged alone")
    if not turn.response_ids:
        return Lack(Stage.CAPTURE, DropReason.EMPTY, "the answer has no token")
    if turn.logprobs is None or any(value is None or value <= PLACEHOLDER for value in turn.logprobs):
        return Lack(Stage.CAPTURE, DropReason.LOGPROB_MISSING, "log-probabilities of the answer's tokens are missing")
    return None


def turn_record(turn: RecordedTurn) -> TurnRecord:
    """What judge and teacher read of the turn. Without token ids its arrays are empty: only the judge may be asked."""
    logprobs = [value for value in turn.logprobs or [] if value is not None]
    return TurnRecord(
        turn_id=turn.turn_id,
        messages=bytes(turn.messages),
        tools=None if is_null(turn.tools) else bytes(turn.tools),
        rendering=bytes(turn.rendering),
        answer=bytes(turn.answer),
        next_state=bytes(turn.next_state),
        prompt_ids=_packed(turn.prompt_ids, "int32"),
        response_ids=_packed(turn.response_ids, "int32"),
        logprobs=_packed(logprobs, "float32"),
    )


def _packed(values: list[int] | list[float] | None, dtype: str) -> PackedArray:
    return pack(values, dtype) if values else PackedArray(dtype=dtype, shape=(0,), data=b"")


def linked_turn(turn: RecordedTurn, *, engine: str, engine_url: str, version: int, now_ms: int) -> LinkedTurn:
    """The turn as the linker would release it now: served by ``engine`` under ``version``."""
    return LinkedTurn(
        turn_id=turn.turn_id,
        tenant=turn.session.tenant,
        session_id=turn.session.session_id,
        turn_index=turn.session.turn_index,
        segment=turn.session.segment,
        api=turn.session.api,
        engine=engine,
        engine_url=engine_url,
        behaviour_space=turn.behaviour_space,
        sampling=turn.sampling,
        finish_reason=turn.finish_reason,
        version_oldest=version,
        version_newest=version,
        num_prompt_tokens=len(turn.prompt_ids or []),
        num_response_tokens=len(turn.response_ids or []),
        captured_ms=turn.captured_ms,
        linked_ms=now_ms,
        feedback_score=turn.feedback_score,
    )
