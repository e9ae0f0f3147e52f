"""`hintloop report` on runs that were written by the trainer's own writers."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest
from hintloop.commands import app
from hintloop.errors import CommandError
from hintloop.report import figures, summary
from hintloop.report.runs import read_run
from hintloop.report.token_classes import (
    BREAK,
    ENDS,
    NUMBER,
    OTHER,
    PUNCTUATION,
    WORD_PART,
    WORD_START,
    class_of,
    classifier,
)
from hintloop_trainer.metrics.jsonl import MetricsFile
from tokenizers import Tokenizer, decoders, models
from typer.testing import CliRunner

from tests.scripted.student import save_student


def answer(step: int, advantages: list[float], *, hint: str | None = "Be brief.", score: int | None = -1) -> str:
    old = [-2.0] * len(advantages)
    line = {
        "step": step,
        "turn_id": f"t{step}",
        "hint": hint,
        "score": score,
        "response_ids": [ord("A") + place for place in range(len(advantages))],
        "teacher_logprobs": [before + gap for before, gap in zip(old, advantages, strict=True)],
        "old_logprobs": old,
        "advantages": [max(-5.0, min(5.0, value)) for value in advantages],
    }
    return json.dumps(line) + "\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Twelve steps, the last two of which were lost in a crash and made anew; tokens of two of them."""
    directory = tmp_path / "first"
    writer = MetricsFile(directory / "metrics.jsonl", "run-1")
    writer.begin(0)
    for step in range(1, 13):
        writer.write(
            {"step": step, "version": step + 1, "loss": 99.0 if step > 10 else float(step), "score_mean": -1.0}
        )
    again = MetricsFile(directory / "metrics.jsonl", "run-2")
    again.begin(10)
    for step in (11, 12):
        again.write({"step": step, "version": step + 5, "loss": float(step), "effective_w_rl": 0.5, "dropped_stale": 3})
    kept = answer(1, [1.0, -1.0, -3.0, 12.0]) + answer(2, [0.5, 0.5], hint=None, score=1)
    (directory / "teacher_logprobs.jsonl").write_text(kept + '{"step": 3, "turn')
    return directory


def test_a_run_is_read_as_its_weights_descend(run_dir: Path) -> None:
    run = read_run(run_dir, 100)
    assert [step["loss"] for step in run.steps] == [float(step) for step in range(1, 13)]
    assert run.tokens.advantages.tolist() == [1.0, -1.0, -3.0, 5.0, 0.5, 0.5]
    assert run.tokens.gaps.tolist() == [1.0, -1.0, -3.0, 12.0, 0.5, 0.5]
    assert run.tokens.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert (run.num_answers, run.drops, run.scores) == (2, {"stale": 3}, {1: [-1], 2: [1]})
    assert read_run(run_dir, 1).tokens.positions.tolist() == [0, 1, 2, 3]


def test_tables_hold_what_was_written(run_dir: Path) -> None:
    run = read_run(run_dir, 100)
    assert ("loss", "3", "10") in summary.progress(run).rows
    found = dict(summary.distribution(run).rows)
    assert found["tokens"] == "6"
    assert found["above 0 / below 0"] == "66.7% / 33.3%"
    assert found["|teacher − student| above 10"] == "16.67%"
    kinds = {
        row[0]: row[1:] for row in summary.by_class(run, lambda token: NUMBER if token == ord("A") else OTHER).rows
    }
    assert kinds[NUMBER] == ("2", "+0.750 ± 0.250", "100% / 0%", "0.00%")
    places = [row[:3] for row in summary.by_position(run).rows]
    assert places[0] == ("0", "2", "+0.750 ± 0.250")
    assert places[1] == ("1 to 3", "4", "+0.375 ± 2.945")
    assert summary.hints(run).rows == [("Be brief.", "1", "100%")]
    assert summary.settings(run).rows == [("w_rl", "0.5")]


@pytest.mark.parametrize(
    ("text", "control", "expected"),
    [
        ("<|im_end|>", True, ENDS),
        ("\n\n", False, BREAK),
        (" 12", False, NUMBER),
        ("v2", False, NUMBER),
        (" —", False, PUNCTUATION),
        ("},", False, PUNCTUATION),
        (" comet", False, WORD_START),
        ("A", False, WORD_START),
        ("ing", False, WORD_PART),
        ("彗", False, WORD_PART),
        ("_", False, OTHER),
    ],
)
def test_token_classes(text: str, control: bool, expected: str) -> None:
    assert class_of(text, control=control) == expected


def test_the_page_is_whole_in_itself_and_always_the_same(run_dir: Path) -> None:
    arguments = ["report", str(run_dir), "--tokenizer", save_student(run_dir / "student")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    page = (run_dir / "report" / "report.html").read_text()
    assert page.count("<svg") == 6  # loss, score, histogram, kinds, places, hints
    # Names of XML dialects are no addresses that anything is loaded from.
    assert re.findall(r"""(?:src|href)=["'](?!#)""", page.replace("xlink:href", "")) == []
    markdown = (run_dir / "report" / "report.md").read_text()
    assert "| beginning of a word | 6 |" in markdown
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (run_dir / "report" / "report.html").read_text() == page


def test_two_runs_are_compared(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "second"
    writer = MetricsFile(other / "metrics.jsonl", "run-3")
    writer.begin(0)
    for step in range(1, 6):
        writer.write({"step": step, "version": step, "loss": 4.0})
    (other / "teacher_logprobs.jsonl").write_text(answer(1, [-1.0] * 6))
    runs = [read_run(run_dir, 100), read_run(other, 100)]
    rows = {row[0]: row[1:] for row in summary.comparison(*runs).rows}
    assert rows["loss"] == ("10", "4", "6")
    (label,) = [name for name in rows if "Kolmogorov" in name]
    # The answers' means are +0.5 and +0.5 in the first run, -1 in the second.
    assert rows[label][2] == "1.000"
    assert {plot.title for plot in figures.plots(runs, [lambda _: OTHER] * 2)} == {
        "Loss and its parts",
        "Score by the judge",
        "Advantages by token, first 12 step(s) and first 5 step(s)",
        "Advantages by kind of token",
        "Advantages by place in the answer",
        "Length of the hints",
    }
    result = CliRunner().invoke(app, ["report", str(run_dir), "--against", str(other), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    assert "first against second" in (tmp_path / "out" / "report.md").read_text()


def test_tokens_of_one_answer_are_no_evidence_of_their_own(run_dir: Path) -> None:
    path = run_dir / "teacher_logprobs.jsonl"
    ran = []
    for name, value in (("long", 1.0), ("other", -1.0)):
        path.write_text(answer(1, [value] * 50) + answer(2, []) + answer(2, [value] * 50))
        ran.append(read_run(run_dir, 100, name=name))
    assert summary.answer_means(ran[0]).tolist() == [1.0, 1.0]
    rows = {row[0]: row[1:] for row in summary.comparison(*ran).rows}
    (p,) = [float(row[2]) for name, row in rows.items() if name.startswith("its p")]
    # Of two answers against two others, one order in three parts them so.
    assert p == pytest.approx(1 / 3, abs=0.01)


def test_each_runs_tokens_are_told_by_its_own_tokenizer(run_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run_dir, tmp_path / "second")
    for directory, piece in ((run_dir, "12"), (other, "ing")):
        current = directory / "weights" / "current"
        current.mkdir(parents=True)
        tokens = {piece + "\u0301" * place: ord("A") + place for place in range(4)}
        Tokenizer(models.BPE(tokens, [])).save(str(current / "tokenizer.json"))
    result = CliRunner().invoke(app, ["report", str(run_dir), "--against", str(other), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    mine, theirs = (tmp_path / "out" / "report.md").read_text().split("\n# second\n")
    assert "| number | 6 |" in mine and "| rest of a word | 6 |" in theirs


def test_hints_are_counted_and_measured(run_dir: Path) -> None:
    rows = dict(summary.hint_statistics(read_run(run_dir, 100)).rows)
    assert rows["kept answers with a hint"] == "1 of 2 (50%)"
    assert rows["different hints"] == "1 (100% of those given)"
    assert rows["characters, mean"] == "9"
    assert summary.hint_statistics(read_run(run_dir, 100)).title == "Hints, first 12 step(s)"
    assert summary.hint_statistics(read_run(run_dir, 1)).title == "Hints, first 1 step(s)"


def test_without_more_to_go_by_the_trainers_own_drops_are_told(run_dir: Path) -> None:
    table = summary.drops(read_run(run_dir, 100))
    assert (table.title, table.rows) == ("Samples that the trainer dropped", [("stale", "3", "")])


def demo_report(directory: Path) -> None:
    """What the demo leaves beside its trainer's files."""
    rates = {"satisfied": 0.1, "joint": 0.05, "n": 64, "satisfied_ci": [0.04, 0.2], "joint_ci": [0.02, 0.13]}
    after = {"satisfied": 0.9, "joint": 0.8, "n": 64, "satisfied_ci": [0.8, 0.95], "joint_ci": [0.68, 0.88]}
    counts = {"captured": 200, "linked": 100, "judged": 90, "trained": 80}
    content = {
        **counts,
        "dropped": {"no_next_state": 90, "neutral": 3},
        "preference_before": rates,
        "preference_after": after,
    }
    (directory / "report.json").write_text(json.dumps(content))
    (directory / "rounds.json").write_text(json.dumps([rates, after]))


def test_the_demos_run_shows_the_improvement_and_every_drop(run_dir: Path) -> None:
    demo_report(run_dir)
    run = read_run(run_dir, 100)
    assert summary.drops(run).rows == [("no_next_state", "90", "45.0%"), ("neutral", "3", "1.5%")]
    assert summary.funnel(run).rows[0] == ("captured", "200")
    assert summary.preference(run).rows[1] == ("satisfied and on topic, n = 64", "5% [2%, 13%]", "80% [68%, 88%]")
    drawn = {plot.title: plot.svg for plot in figures.plots([run], [lambda _: OTHER])}
    assert "on topic, too" in drawn["Answers as the user wants them"]
    result = CliRunner().invoke(app, ["report", str(run_dir)])
    assert result.exit_code == 0, result.exception
    markdown = (run_dir / "report" / "report.md").read_text()
    assert "| satisfied and on topic, n = 64 | 5% \\[2%, 13%\\] | 80% \\[68%, 88%\\] |" in markdown


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_stopped_stacks_drops_are_those_that_its_console_kept(run_dir: Path, tmp_path: Path, elsewhere: bool) -> None:
    database = run_dir / "console.sqlite3"
    if elsewhere:
        database = tmp_path / "mine.sqlite3"
        (run_dir / "config.toml").write_text(f"[console]\ndatabase = {json.dumps(str(database))}\n")
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(files("hintloop_console").joinpath("schema.sql").read_text(encoding="utf-8"))
        rows = [("t1", "link", "no_next_state"), ("t2", "link", "no_next_state"), ("t3", "judge", "no_hint")]
        connection.executemany("INSERT INTO drops VALUES (?, 1, 'default', ?, ?, '')", rows)
        connection.commit()
    assert summary.drops(read_run(run_dir, 100)).rows == [("no_next_state", "2", ""), ("no_hint", "1", "")]


def test_a_damaged_report_of_the_demo_is_as_good_as_none(run_dir: Path) -> None:
    (run_dir / "report.json").write_text("[1, 2")
    run = read_run(run_dir, 100)
    assert (run.pipeline, run.preference) == (None, None)


def test_what_is_no_run_is_said_so(tmp_path: Path) -> None:
    assert "nothing was trained there yet" in str(CliRunner().invoke(app, ["report", str(tmp_path)]).exception)
    (tmp_path / "metrics.jsonl").write_text("")
    assert "holds no step yet" in str(CliRunner().invoke(app, ["report", str(tmp_path)]).exception)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "version": 2}\n')
    (tmp_path / "teacher_logprobs.jsonl").write_text('{"step": "x"}\n')
    assert "another version" in str(CliRunner().invoke(app, ["report", str(tmp_path)]).exception)


HINT = "<script>alert(1)</script> ![x](http://tracker/p.png) \x1b[31mred \u202egnol &lt; a|b \\"


def test_what_agents_wrote_stays_text_in_both_forms(tmp_path: Path) -> None:
    directory = tmp_path / "$a$ <b>run"
    writer = MetricsFile(directory / "metrics.jsonl", "run-1")
    writer.begin(0)
    writer.write({"step": 1, "version": 2, "loss": 1.0, "effective_loss": "<i>mine</i>.py"})
    (directory / "teacher_logprobs.jsonl").write_text(answer(1, [1.0, -1.0], hint=HINT))
    arguments = ["report", str(directory), "--against", str(directory), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    page, markdown = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    for text in (page, markdown):
        assert "\x1b" not in text and "\u202e" not in text
        assert not re.search(r"(?<!\\)<(script|b|i)>", text)
    assert "&lt;script&gt;" in page and "\\u001b[31mred" in page and "$a$" in page
    assert "!\\[x\\](http" in markdown and "a\\|b" in markdown and "\\&lt;" in markdown


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(json.loads(answer(1, [1.0])) | {"response_ids": [-1]}),
        json.dumps(json.loads(answer(1, [1.0])) | {"response_ids": [2**40]}),
        json.dumps(json.loads(answer(1, [1.0])) | {"old_logprobs": []}),
        json.dumps(json.loads(answer(1, [1.0])) | {"advantages": [float("nan")]}),
        "[" * 100_000,
    ],
    ids=["negative", "huge", "lengths", "nan", "deep"],
)
def test_tokens_that_cannot_be_are_refused(run_dir: Path, line: str) -> None:
    (run_dir / "teacher_logprobs.jsonl").write_text(line + "\n")
    error = CliRunner().invoke(app, ["report", str(run_dir)]).exception
    assert isinstance(error, CommandError) and "cannot be read" in str(error)


def test_ids_out_of_the_vocabulary_are_of_no_kind(run_dir: Path) -> None:
    classify = classifier(Path(save_student(run_dir / "student")))
    assert classify(2**31 - 1) in (BREAK, OTHER)


def test_a_broken_tokenizer_is_named(run_dir: Path) -> None:
    (run_dir / "student").mkdir()
    (run_dir / "student" / "tokenizer.json").write_text("{")
    error = CliRunner().invoke(app, ["report", str(run_dir), "--tokenizer", str(run_dir / "student")]).exception
    assert isinstance(error, CommandError) and "is no tokenizer" in str(error)


def test_lines_that_are_no_step_are_left_out(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    junk = [b"1", b"null", b"[]", b'{"step": "7"}', b'{"loss": 1.0}', b'{"step": 1e400}', b"\xff", b"[" * 100_000]
    path.write_bytes(b"\n".join([*junk, path.read_bytes()]))
    assert [step["loss"] for step in read_run(run_dir, 100).steps] == [float(step) for step in range(1, 13)]


def test_a_words_beginning_is_told_of_a_decoder_that_strips_the_blank(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"▁comet": 0, "ing": 1, "▁": 2}, []))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    classify = classifier(tmp_path)
    assert tokenizer.decode([0]) == "comet"
    assert [classify(token) for token in range(3)] == [WORD_START, WORD_PART, BREAK]
