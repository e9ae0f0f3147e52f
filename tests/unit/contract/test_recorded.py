"""Recorded turns: nothing is lost on the way to a line and back; what is wrong is named with its fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hintloop_contract import recorded as form
from hintloop_contract.messages import Judgement, LinkedTurn, Sample, Sampling, TurnRecord, VersionSpan, Vote
from hintloop_contract.tensors import pack, unpack

LOGPROBS = np.array([-0.1, -1.2345678, -3e-8, 0.0], np.float32)


def turn_and_record(**changes: Any) -> tuple[LinkedTurn, TurnRecord]:
    turn = LinkedTurn(
        turn_id="turn-1",
        tenant="acme",
        session_id="session-1",
        turn_index=4,
        segment=1,
        api="messages",
        engine="sglang",
        engine_url="http://10.0.0.1:30000",
        behaviour_space="after_temperature",
        sampling=Sampling(temperature=0.7, top_p=0.9, max_tokens=48),
        finish_reason="stop",
        version_oldest=3,
        version_newest=3,
        spans=(VersionSpan(version=3, start=0, end=4),),
        num_prompt_tokens=3,
        num_response_tokens=4,
        captured_ms=1_700_000_000_000,
        linked_ms=1_700_000_001_000,
        feedback_score=-1,
    )
    record = TurnRecord(
        turn_id="turn-1",
        messages=b'[ {"role": "user",\n "content": "two\\nlines \xc3\xa9", "x": 1.0e2} ]',
        tools=b'[{"type": "function"}]',
        rendering=b'{"chat_template_kwargs": {"enable_thinking": false}}',
        answer=b'{"role": "assistant", "content": "hello"}',
        next_state=b'[{"role": "user", "content": "Shorter."}]',
        prompt_ids=pack([1, 2, 2**31 - 1], "int32"),
        response_ids=pack([5, 6, 7, 2], "int32"),
        logprobs=pack(LOGPROBS, "float32"),
    )
    return turn, msgspec.structs.replace(record, **changes)


def line_with(**changes: Any) -> bytes:
    """A good line as JSON, with some of its fields changed (``...`` removes one)."""
    found = json.loads(form.encode_line(form.recorded(*turn_and_record())))
    for name, value in changes.items():
        if value is ...:
            del found[name]
        else:
            found[name] = value
    return json.dumps(found).encode() + b"\n"


def test_everything_that_judge_teacher_and_trainer_read_comes_back_exactly() -> None:
    turn, record = turn_and_record()
    line = form.encode_line(form.recorded(turn, record))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    back = form.decode_line(line)
    again = form.turn_record(back)
    for name in ("messages", "tools", "rendering", "answer", "next_state"):
        assert getattr(again, name) == getattr(record, name).replace(b"\n", b" ")
    for name in ("prompt_ids", "response_ids", "logprobs"):
        np.testing.assert_array_equal(unpack(getattr(again, name)), unpack(getattr(record, name)))
    linked = form.linked_turn(back, engine="vllm", engine_url="http://127.0.0.1:1", version=9, now_ms=5)
    same = {
        "engine": "vllm",
        "engine_url": "http://127.0.0.1:1",
        "version_oldest": 9,
        "version_newest": 9,
        "spans": (),
        "linked_ms": 5,
    }
    assert linked == msgspec.structs.replace(turn, **same)
    assert back.versions == form.RecordedVersions(oldest=3, newest=3, spans=turn.spans)
    assert form.lack(back) is None


def sample_of(turn: LinkedTurn, record: TurnRecord, teacher: np.ndarray) -> Sample:
    return Sample(
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        prompt_ids=record.prompt_ids,
        response_ids=record.response_ids,
        behaviour_logprobs=record.logprobs,
        behaviour_space="raw",
        sampling=turn.sampling,
        version_oldest=3,
        version_newest=3,
        captured_ms=1,
        score=-1,
        hint="Be brief, please.",
        teacher_logprobs=pack(teacher, "float32"),
        teacher_model="prm",
        num_hinted_prompt_tokens=12,
    )


def test_judgement_and_sample_travel_with_the_turn() -> None:
    turn, record = turn_and_record()
    judgement = Judgement(score=-1, hint="Be brief, please.", votes=(Vote(failed="cut"), Vote(score=-1)), backend="llm")
    sample = sample_of(turn, record, LOGPROBS)
    back = form.decode_line(form.encode_line(form.recorded(turn, record, judgement, sample)))
    assert back.judgement == judgement
    assert back.sample is not None
    np.testing.assert_array_equal(np.asarray(back.sample.teacher_logprobs, np.float32), LOGPROBS)
    assert (back.sample.teacher_model, back.sample.num_hinted_prompt_tokens) == ("prm", 12)


@pytest.mark.parametrize(
    ("line", "field", "fix"),
    [
        (b"{", "", "one whole JSON object a line"),
        (b"[]", "", "docs/replay.md"),
        (line_with(turn_id=...), "turn_id", "add it"),
        (line_with(turn_id=""), "turn_id", "printable"),
        (line_with(turnid="x"), "turnid", "remove it"),
        (line_with(v=2), "v", "write 1"),
        (line_with(v=9, new_field=1), "v", "upgrade"),
        (line_with(messages={}), "messages", "an array"),
        (line_with(messages=["x"]), "messages", "objects"),
        (line_with(tools={}), "tools", "an array"),
        (line_with(answer=[]), "answer", "an object"),
        (line_with(rendering=[]), "rendering", "an object"),
        (line_with(prompt_ids=[-1]), "prompt_ids", "engine's own"),
        (line_with(response_ids=[2**31, 1, 1, 1]), "response_ids", "engine's own"),
        (line_with(response_ids=[1]), "logprobs", "nothing is padded or cut"),
        (line_with(response_ids=None), "response_ids", "both or neither"),
        (line_with(logprobs=[-1, 0.5, -1, -1]), "logprobs", "engine's own"),
        (line_with(behaviour_space="warm"), "behaviour_space", "processed"),
        (line_with(engine="ollama"), "engine", "sglang"),
        (line_with(feedback_score=2), "feedback_score", "-1 or null"),
        (line_with(versions={"oldest": 4, "newest": 3}), "versions", "exchange"),
        (line_with(sampling={"temperature": "hot"}), "sampling.temperature", "docs/replay.md"),
        (line_with(session={"session_id": "a", "turn_index": 0, "oops": 1}), "session.oops", "remove it"),
        (line_with(sample={"teacher_logprobs": [-1, -1, -1]}), "sample.teacher_logprobs", "nothing is padded or cut"),
        (
            line_with(response_ids=None, logprobs=None, sample={"teacher_logprobs": [-1]}),
            "response_ids",
            "both or neither",
        ),
    ],
)
def test_a_wrong_line_is_told_by_field_and_fix(line: bytes, field: str, fix: str) -> None:
    with pytest.raises(form.RecordedTurnError) as caught:
        form.decode_line(line)
    assert caught.value.field == field
    assert fix in caught.value.fix
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "stage", "reason"),
    [
        ({"next_state": [], "feedback_score": None}, "link", "no_next_state"),
        ({"finish_reason": "abort"}, "link", "aborted"),
        ({"prompt_ids": None}, "capture", "ids_missing"),
        ({"response_ids": [], "logprobs": []}, "capture", "empty"),
        ({"logprobs": None}, "capture", "logprob_missing"),
        ({"logprobs": [-1, None, -1, -1]}, "capture", "logprob_missing"),
        ({"logprobs": [-1, -9999.0, -1, -1]}, "capture", "logprob_missing"),
    ],
)
def test_what_cannot_be_trained_has_the_live_loops_reason(changes: dict[str, Any], stage: str, reason: str) -> None:
    found = form.lack(form.decode_line(line_with(**changes)))
    assert found is not None
    assert (found.stage, found.reason) == (stage, reason)


def test_explicit_feedback_needs_no_next_state() -> None:
    assert form.lack(form.decode_line(line_with(next_state=[]))) is None


def test_the_teachers_damaged_numbers_keep_their_places() -> None:
    turn, record = turn_and_record()
    sample = sample_of(turn, record, np.array([-0.5, np.nan, -np.inf, -2.0], np.float32))
    back = form.decode_line(form.encode_line(form.recorded(turn, record, sample=sample)))
    assert back.sample is not None
    assert back.sample.teacher_logprobs == [-0.5, None, None, -2.0]


def test_a_damaged_number_is_recorded_as_missing() -> None:
    broken = np.array([-0.1, np.nan, -np.inf, -1.0], np.float32)
    turn, record = turn_and_record(logprobs=pack(broken, "float32"))
    back = form.decode_line(form.encode_line(form.recorded(turn, record)))
    assert back.logprobs == [pytest.approx(-0.1), None, None, -1.0]
    found = form.lack(back)
    assert found is not None
    assert found.reason == "logprob_missing"


def test_a_line_of_version_1_is_read_for_ever() -> None:
    """As an engine, a judge and a teacher left it; never to be written anew."""
    line = (Path(__file__).parent / "recorded_turn_v1.jsonl").read_bytes()
    turn = form.decode_line(line)
    assert (turn.v, turn.engine, turn.behaviour_space) == (1, "vllm", "processed")
    assert turn.response_ids is not None
    assert turn.logprobs is not None
    assert len(turn.response_ids) == len(turn.logprobs) > 0
    assert turn.judgement is not None
    assert turn.sample is not None
    assert turn.sample.teacher_logprobs is not None
    assert len(turn.sample.teacher_logprobs) == len(turn.response_ids)
    assert form.lack(turn) is None


@pytest.mark.parametrize(
    ("name", "items", "field"),
    [
        ("messages", [{"content": "no role"}], "messages[0].role"),
        ("messages", [{"role": "user", "content": "a"}, {"role": "", "content": "b"}], "messages[1].role"),
        ("next_state", [{"role": "user", "content": 3}], "next_state[0].content"),
    ],
)
def test_a_message_that_is_none_is_named(name: str, items: list[Any], field: str) -> None:
    with pytest.raises(form.RecordedTurnError) as caught:
        form.decode_line(line_with(**{name: items}))
    assert caught.value.field == field
    assert caught.value.fix


def test_items_of_the_responses_api_have_a_type_and_no_role() -> None:
    items = [{"type": "function_call_output", "call_id": "c", "output": "3"}, {"role": "user", "content": None}]
    assert json.loads(bytes(form.decode_line(line_with(messages=items)).messages)) == items
