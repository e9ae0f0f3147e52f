"""One turn with everything that is known of it: messages, votes, hint, every token with both log-probabilities.

Legend: T = response tokens, K = teacher candidates.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec
import structlog
from hintloop_contract.codec import decode_payload
from hintloop_contract.errors import MessageError
from hintloop_contract.history import Trained
from hintloop_contract.messages import JudgedTurn, LinkedTurn, Sample, TurnRecord
from hintloop_contract.recorded import encode_line, recorded
from hintloop_contract.tensors import PackedArray, unpack

from hintloop_console.errors import RequestError
from hintloop_console.lists import Row, TurnFilter, turn_row
from hintloop_console.store import Store
from hintloop_console.token_texts import TokenTexts

_KINDS: dict[str, type[Any]] = {
    "turn": LinkedTurn,
    "record": TurnRecord,
    "judged": JudgedTurn,
    "sample": Sample,
    "trained": Trained,
}
#: Turns that one query of an export takes.
EXPORTED_AT_ONCE = 20


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a turn; ``None`` where nothing was told of it yet."""

    turn: LinkedTurn | None = None
    record: TurnRecord | None = None
    judged: JudgedTurn | None = None
    sample: Sample | None = None
    trained: Trained | None = None

    @property
    def linked(self) -> LinkedTurn | None:
        """The turn itself."""
        return self.turn or (self.judged.turn if self.judged else None)


def contents(connection: sqlite3.Connection, seq: int) -> Contents:
    """What is kept of a turn. What cannot be read any more is left out, and logged."""
    found: dict[str, Any] = {}
    for kind, data in connection.execute("SELECT kind, data FROM contents WHERE seq = ?", (seq,)):
        try:
            found[kind] = decode_payload(data, _KINDS[kind])
        except (MessageError, KeyError) as error:
            structlog.get_logger().warning("kept message cannot be read", kind=kind, seq=seq, detail=str(error))
    return Contents(**found)


def turn(connection: sqlite3.Connection, turn_id: str, tokens: TokenTexts, num_top: int) -> Row:
    """The turn as its page shows it, ``num_top`` candidates a token at most.

    Raises:
        RequestError: it is not kept here.
    """
    row = connection.execute("SELECT * FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
    if row is None:
        return _dropped_alone(connection, turn_id)
    kept = contents(connection, row["seq"])
    drop = None
    if row["reason"] is not None:
        drop = {"stage": row["drop_stage"], "reason": row["reason"], "detail": row["detail"]}
    return {
        **turn_row(row),
        "drop": drop,
        **_said(kept),
        **_judged(kept),
        **_made(kept),
        **_tokens(kept, tokens, num_top),
    }


def _dropped_alone(connection: sqlite3.Connection, turn_id: str) -> Row:
    """A turn of which only its end is known: it was never linked, so nobody kept its words."""
    row = connection.execute("SELECT * FROM drops WHERE turn_id = ?", (turn_id,)).fetchone()
    if row is None:
        raise RequestError(404, f"turn {turn_id[:80]!r} is not kept here: it is older than console.keep_turns, or none")
    nothing: Row = dict.fromkeys(
        ("session_id", "turn_index", "score", "hint", "tokens", "advantage_mean", "step", "version")
    )
    drop = {name: row[name] for name in ("stage", "reason", "detail")}
    known = {"turn_id": turn_id, "tenant": row["tenant"], "time_ms": row["time_ms"], "stage": "dropped", "text": ""}
    ended = {"drop_stage": row["stage"], "reason": row["reason"], "drop": drop}
    empty = Contents()
    return {**nothing, **known, **ended, **_said(empty), **_judged(empty), **_made(empty), "tokens": []}


def _said(kept: Contents) -> Row:
    record = kept.record
    if record is None:
        return {"messages": [], "tools": None, "answer": None, "next_state": [], "rendering": {}}
    return {
        "messages": _json(record.messages, []),
        "tools": None if record.tools is None else _json(record.tools, None),
        "answer": _json(record.answer, None),
        "next_state": _json(record.next_state, []),
        "rendering": _json(record.rendering, {}),
    }


def _json(data: bytes, otherwise: Any) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return otherwise


def _judged(kept: Contents) -> Row:
    judgement = kept.judged.judgement if kept.judged else None
    votes = (
        [{"score": vote.score, "hint": vote.hint, "failed": vote.failed} for vote in judgement.votes]
        if judgement
        else []
    )
    return {
        "votes": votes,
        "judge": {"backend": judgement.backend, "model": judgement.model} if judgement else None,
        "teacher_model": kept.sample.teacher_model if kept.sample else None,
    }


def _made(kept: Contents) -> Row:
    """How the answer was made."""
    turn = kept.linked
    if turn is None:
        return {"spans": [], "sampling": None, "made": None}
    spans = [{"version": span.version, "start": span.start, "end": span.end} for span in turn.spans]
    made = {
        "engine": turn.engine,
        "api": turn.api,
        "finish_reason": turn.finish_reason,
        "behaviour_space": turn.behaviour_space,
        "version_oldest": turn.version_oldest,
        "version_newest": turn.version_newest,
        "prompt_tokens": turn.num_prompt_tokens,
        "segment": turn.segment,
        "feedback_score": turn.feedback_score,
    }
    return {"spans": spans, "sampling": msgspec.to_builtins(turn.sampling), "made": made}


def _tokens(kept: Contents, tokens: TokenTexts, num_top: int) -> Row:
    record, sample, trained = kept.record, kept.sample, kept.trained
    ids_T = _ids(record.response_ids if record else sample.response_ids if sample else None)
    before = _ids(record.prompt_ids if record else None)
    count = len(ids_T)
    behaviour_T = _numbers(record.logprobs if record else sample.behaviour_logprobs if sample else None, count)
    teacher_T = _numbers(sample.teacher_logprobs if sample else None, count)
    student_T = _numbers(trained.student_logprobs if trained else None, count)
    advantages_T = _numbers(trained.advantages if trained else None, count)
    top_T = _top(sample, tokens, num_top, count)
    texts_T = tokens.of_answer(ids_T, before)
    rows = zip(ids_T, texts_T, behaviour_T, student_T, teacher_T, advantages_T, top_T, strict=True)
    names = ("id", "text", "behaviour", "student", "teacher", "advantage", "top")
    return {"tokens": [dict(zip(names, row, strict=True)) for row in rows]}


def _ids(packed: PackedArray | None) -> list[int]:
    found: list[int] = [] if packed is None else unpack(packed).tolist()
    return found


def _numbers(packed: PackedArray | None, count: int) -> list[float | None]:
    """Numbers of ``count`` tokens; none of an array that is not of this answer."""
    if packed is None or len(packed) != count:
        return [None] * count
    return [round(value, 6) if math.isfinite(value) else None for value in unpack(packed).tolist()]


def _top(sample: Sample | None, tokens: TokenTexts, num_top: int, count: int) -> list[list[Row]]:
    if sample is None or sample.teacher_topk_ids is None or sample.teacher_topk_logprobs is None:
        return [[] for _ in range(count)]
    ids_TK, logprobs_TK = unpack(sample.teacher_topk_ids), unpack(sample.teacher_topk_logprobs)
    if len(ids_TK) != count:
        return [[] for _ in range(count)]
    return [
        [
            {
                "id": token,
                "text": tokens.of_candidate(token),
                "logprob": round(logprob, 4) if math.isfinite(logprob) else None,
            }
            for token, logprob in zip(ids, logprobs, strict=True)
        ]
        for ids, logprobs in zip(ids_TK[:, :num_top].tolist(), logprobs_TK[:, :num_top].tolist(), strict=True)
    ]


def exported(store: Store, chosen: TurnFilter) -> Iterator[bytes]:
    """Chosen turns as recorded turns, one a line, oldest first; such as have no record are left out.

    Between portions it holds nothing: who takes the lines may be slow, or stop taking them.
    """
    clause, values = chosen.clause()
    last = -1
    while True:
        with store.reading() as connection:
            rows = connection.execute(
                f"SELECT seq FROM turns WHERE {clause} AND seq > ? ORDER BY seq LIMIT ?",
                [*values, last, EXPORTED_AT_ONCE],
            ).fetchall()
            kept = [contents(connection, row["seq"]) for row in rows]
        if not rows:
            return
        last = int(rows[-1]["seq"])
        for line in map(_line, kept):
            if line is not None:
                yield line


def _line(kept: Contents) -> bytes | None:
    if kept.linked is None or kept.record is None:
        return None
    judgement = kept.judged.judgement if kept.judged else None
    try:
        return encode_line(recorded(kept.linked, kept.record, judgement, kept.sample))
    except MessageError as error:
        structlog.get_logger().warning("turn left out of the export", turn_id=kept.record.turn_id, detail=str(error))
        return None
