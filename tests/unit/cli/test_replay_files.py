"""Files of recorded turns: what is wrong is named by line, and OpenClaw-RL's records are read for what they hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hintloop.commands import app
from hintloop.errors import CommandError
from hintloop.replay.lines import MAX_PROBLEMS, checked, numbered_lines, recorded_turns
from hintloop.replay.manifest import Manifest
from hintloop.replay.until import Until
from hintloop.replay.writing import Written
from hintloop_contract.config import load_config
from hintloop_contract.recorded import RecordedTurn, decode_line
from typer.testing import CliRunner

USER = {"role": "user", "content": "What is rain?"}
ANSWER = {"role": "assistant", "content": "Water that falls."}
REPLY = {"role": "user", "content": "Say it shorter."}


def line(turn_id: str = "t1", **changes: Any) -> str:
    """A recorded turn with all that training needs."""
    turn = {
        "turn_id": turn_id,
        "session": {"session_id": "s1"},
        "messages": [USER],
        "answer": ANSWER,
        "next_state": [REPLY],
        "prompt_ids": [1, 2],
        "response_ids": [3, 4],
        "logprobs": [-0.5, -0.25],
    }
    return json.dumps({**turn, **changes}) + "\n"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["replay", *arguments])


def test_check_tells_what_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(line("a") + "\n" + line("b", prompt_ids=None) + line("c", next_state=[]), encoding="utf-8")
    result = run("check", str(file))
    assert result.exit_code == 0, result.output
    assert "3 turns of 1 sessions, 1 can be trained" in result.output
    assert "1 × capture:ids_missing: no token ids were recorded: judged alone" in result.output
    assert "1 × link:no_next_state" in result.output
    document = json.loads(run("check", str(file), "--json").output)
    assert (document["turns"], document["trainable"], document["num_problems"]) == (3, 1, 0)


@pytest.mark.parametrize("where", ["turns.jsonl", "results-a.jsonl", "deeper/turns.jsonl"])
@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_what_a_run_reads_may_not_lie_where_it_writes(where: str, fresh: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    inside, outside = out / where, tmp_path / "turns.jsonl"
    for file in (inside, outside):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line(), encoding="utf-8")
    result = run("run", str(inside), "--out", str(out), *fresh)
    assert result.exit_code and "lies in --out" in str(result.exception)
    result = run("run", str(outside), "--compare", str(inside), "--out", str(out), *fresh)
    assert result.exit_code and f"{str(inside)!r} lies in --out" in str(result.exception)
    assert inside.read_text(encoding="utf-8") == line()


def test_check_names_line_field_and_fix_of_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(line("a") + "{}\n" + line("a") + line("b", logprobs=[-1.0]) + '{"turn_id": "cut', encoding="utf-8")
    result = run("check", str(file))
    assert result.exit_code == 1
    assert "line 2: " in result.output
    assert "line 3: turn_id: 'a' stands in line 1, too; remove one of them" in result.output
    assert "line 4: logprobs: 1 values for 2 response_ids" in result.output
    assert "line 5: the line: it is no JSON" in result.output
    assert "4 problem(s)" in result.output


def test_many_problems_are_counted_and_some_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text("{}\n" * (MAX_PROBLEMS + 7), encoding="utf-8")
    found = checked(file)
    assert (len(found.problems), found.num_problems) == (MAX_PROBLEMS, MAX_PROBLEMS + 7)
    assert "and 7 more problems" in run("check", str(file)).output


def test_reading_goes_on_behind_a_line(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    file.write_text(line("a") + "\n" + line("b") + line("c"), encoding="utf-8")
    assert [number for number, _ in numbered_lines(file)] == [1, 3, 4]
    assert [(number, turn.turn_id) for number, turn in recorded_turns(file, after=1)] == [(3, "b"), (4, "c")]


def test_the_digest_is_the_files_own(tmp_path: Path) -> None:
    file = tmp_path / "turns.jsonl"
    content = ("\n" + line("a") + "  \n\n" + line("b") + "\n").encode()
    file.write_bytes(content)
    assert checked(file).sha256 == hashlib.sha256(content).hexdigest()


def test_a_file_that_is_none_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="give a file of recorded turns"):
        checked(tmp_path / "missing.jsonl")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out" / "file.jsonl"
    with pytest.raises(RuntimeError, match="half way"), Written(target) as written:
        written.write(b"one\n")
        raise RuntimeError("half way")
    assert list(target.parent.iterdir()) == []
    with Written(target) as written:
        written.write(b"one\n")
    assert target.read_bytes() == b"one\n"


def openclaw(turn: int, messages: list[Any], text: str, next_state: Any, **more: Any) -> str:
    record = {
        "session_id": "s",
        "turn": turn,
        "timestamp": "2026-03-01 10:00:00",
        "messages": messages,
        "prompt_text": "<|im_start|>user\nWhat is rain?<|im_end|>\n<|im_start|>assistant\n",
        "response_text": text,
        "tool_calls": None,
        "next_state": next_state,
    }
    return json.dumps({**record, **more}) + "\n"


def imported(tmp_path: Path, records: str, prm: str | None = None) -> tuple[list[RecordedTurn], str]:
    source, out = tmp_path / "record.jsonl", tmp_path / "turns.jsonl"
    source.write_text(records, encoding="utf-8")
    arguments = ["import-openclaw", str(source), "--out", str(out)]
    if prm is not None:
        (tmp_path / "record_prm.jsonl").write_text(prm, encoding="utf-8")
        arguments += ["--prm", str(tmp_path / "record_prm.jsonl")]
    result = run(*arguments)
    assert result.exit_code == 0, result.exception
    return [decode_line(found) for found in out.read_bytes().splitlines()], result.output


def test_answer_and_whole_next_state_come_from_the_next_request(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]}
    results = [
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
    ]
    first = openclaw(1, [USER], "<tool_call>…</tool_call><|im_end|>\n", results[-1])
    second = openclaw(2, [USER, call, *results], "It is water.<|im_end|>\n", None)
    turns, said = imported(tmp_path, first + second)
    assert json.loads(bytes(turns[0].answer)) == call
    # Their record keeps the last message alone; both results are in the request that followed.
    assert json.loads(bytes(turns[0].next_state)) == results
    assert json.loads(bytes(turns[1].answer)) == {"role": "assistant", "content": "It is water."}
    assert json.loads(bytes(turns[1].next_state)) == []
    assert [turn.session.turn_index for turn in turns] == [0, 1]
    assert "1 with the exact answer" in said
    assert "1 can be judged and not trained: these records hold no token ids" in said
    assert "1 cannot be judged: no_next_state" in said
    assert {turn.source for turn in turns} == {"openclaw-rl"}
    assert [turn.prompt_ids for turn in turns] == [None, None]


def test_without_a_next_request_the_record_speaks_for_itself(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "rewritten"}, ANSWER, REPLY]
    records = openclaw(1, [USER], "Water.<|im_end|>\n", REPLY) + openclaw(2, other, "Rain.<|im_end|>", REPLY)
    turns, _ = imported(tmp_path, records)
    assert [json.loads(bytes(turn.answer))["content"] for turn in turns] == ["Water.", "Rain."]
    assert json.loads(bytes(turns[0].next_state)) == [REPLY]


def test_a_record_that_holds_the_conversation_as_its_answer_is_left_out(tmp_path: Path) -> None:
    prompt = "<|im_start|>system\nYou are an agent with a long description of what to do.<|im_end|>\n"
    records = openclaw(1, [USER], prompt + "and all the rest", REPLY, prompt_text=prompt + "<|im_start|>assistant\n")
    turns, said = imported(tmp_path, records)
    assert turns == []
    assert "line 1 is left out: response_text holds the whole conversation" in said


def test_recorded_judgements_come_along(tmp_path: Path) -> None:
    prm = (
        json.dumps({"session_id": "s", "turn": 1, "score": -1.0, "votes": [-1, "fail", -1]})
        + "\n"
        + json.dumps(
            {
                "session_id": "s",
                "turn": 2,
                "accepted": True,
                "hint": "Be brief.",
                "votes": [{"score": 1, "hint": "Be brief."}],
            }
        )
        + "\n"
    )
    records = openclaw(1, [USER], "x", REPLY) + openclaw(2, [REPLY], "y", REPLY)
    turns, said = imported(tmp_path, records, prm)
    judgement = turns[0].judgement
    assert judgement is not None
    assert (judgement.score, [vote.score for vote in judgement.votes]) == (-1, [-1, None, -1])
    assert judgement.votes[1].failed
    assert turns[1].judgement is not None
    assert (turns[1].judgement.hint, turns[1].judgement.votes[0].hint) == ("Be brief.", "Be brief.")
    assert "2 with their recorded judgement" in said


def test_the_same_record_gets_the_same_id_again(tmp_path: Path) -> None:
    records = openclaw(1, [USER], "x", REPLY)
    once, _ = imported(tmp_path, records)
    again, _ = imported(tmp_path, records)
    assert [turn.turn_id for turn in once] == [turn.turn_id for turn in again]


@pytest.mark.parametrize("text", ['{"session_id": "s"}\n', "[]\n", '{"session_id": "s", "turn": "one"}\n'])
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    source = tmp_path / "record.jsonl"
    source.write_text(text, encoding="utf-8")
    result = run("import-openclaw", str(source), "--out", str(tmp_path / "out.jsonl"))
    assert isinstance(result.exception, CommandError)
    assert "line 1" in str(result.exception)
    assert not (tmp_path / "out.jsonl").exists()


def test_another_replay_is_not_mixed_into_a_directory(tmp_path: Path) -> None:
    file, prompts = tmp_path / "turns.jsonl", tmp_path / "prompts"
    file.write_text(line(), encoding="utf-8")
    prompts.mkdir()
    (prompts / "score.md").write_text("one", encoding="utf-8")
    config = tmp_path / "config.toml"
    config.write_text(f"[prm]\njudge_prompt_dir = '{prompts}'\n", encoding="utf-8")

    def manifest(until: Until = Until.JUDGE) -> Manifest:
        return Manifest.of(checked(file), until, {"a": load_config([config], environ={})})

    manifest().require_same(tmp_path)
    manifest().require_same(tmp_path)
    with pytest.raises(CommandError, match="--until judge; give another --out, or --fresh"):
        manifest(Until.TEACHER).require_same(tmp_path)
    # Prompts are what people edit between two runs.
    (prompts / "score.md").write_text("two", encoding="utf-8")
    with pytest.raises(CommandError, match="the configuration of side a"):
        manifest().require_same(tmp_path)
    (prompts / "score.md").write_text("one", encoding="utf-8")
    file.write_text(line("other"), encoding="utf-8")
    with pytest.raises(CommandError, match="another file"):
        manifest().require_same(tmp_path)
