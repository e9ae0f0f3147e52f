import json
from pathlib import Path

import msgspec
from hintloop.demo import trainer_log
from hintloop.demo.tokens_page import ShownAnswer, Token, collect, last_user_text, spread, write
from hintloop.trainer_files import KeptAnswer, read_answers
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def record(step: int) -> KeptAnswer:
    return KeptAnswer(step, f"turn-{step}", [1, 2], [-0.5, -3.0], [-1.0, -2.5], [0.5, -0.5], "One short sentence.", -1)


def config_in(folder: Path) -> Config:
    return Config.model_validate({"training": {"checkpoint_dir": str(folder / "checkpoints")}})


def test_the_page_shows_signs_hint_and_text_as_text(tmp_path: Path) -> None:
    tokens = [
        Token("<b>Rain", -2.0, -0.5, 1.5),
        Token(" falls", -1.0, -7.0, -6.0),
        Token(".", -1.0, -1.0, 0.0),
        Token("\n", -1.0, -1.0, 0.0),
    ]
    write(tmp_path / "tokens.html", [ShownAnswer(3, "What is <rain>?", "One short sentence.", -1, tokens)])
    page = (tmp_path / "tokens.html").read_text()
    assert "&lt;b&gt;Rain" in page
    assert "What is &lt;rain&gt;?" in page
    assert "rgba(34, 160, 80, 0.50)" in page
    assert "rgba(210, 50, 50, 1.00)" in page
    assert "without the hint: 36.8% (log-probability -1.000)\nwith the hint: 0.1% (log-probability -7.000)" in page
    assert "advantage: -6.000" in page
    assert "⏎" in page
    assert "the user complained" in page
    assert "One short sentence." in page


def test_a_page_without_answers_says_why(tmp_path: Path) -> None:
    write(tmp_path / "tokens.html", [])
    assert "kept no per-token differences" in (tmp_path / "tokens.html").read_text()


def test_answers_are_taken_evenly_over_the_run() -> None:
    records = [record(step) for step in range(100)]
    chosen = spread(records, 4)
    assert [one.step for one in chosen] == [0, 25, 50, 75]
    assert spread(records[:3], 4) == records[:3]


def test_last_user_message_of_text_or_parts() -> None:
    messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}, {"role": "assistant"}]
    assert last_user_text(msgspec.json.encode(messages)) == "two"
    parts = [{"role": "user", "content": [{"type": "text", "text": "two"}]}]
    assert "two" in last_user_text(msgspec.json.encode(parts))
    assert last_user_text(b"[]") == ""


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    whole = msgspec.json.encode(record(1))
    (tmp_path / "teacher_logprobs.jsonl").write_bytes(whole + b"\n" + whole[:20])
    assert read_answers(tmp_path) == [record(1)]
    assert trainer_log.read_steps(config_in(tmp_path)) == []


def test_a_step_of_the_trainer_is_read_whatever_else_it_says(tmp_path: Path) -> None:
    line = (
        b'{"time_s":1.0,"step":1,"version":2,"loss":0.1,"grad_norm":3.0,"tokens_trained":700,"advantage_mean":-0.2,'
        b'"advantage_std":1.0,"advantage_share_positive":0.4,"advantage_share_negative":0.6,"entropy":null}\n'
    )
    (tmp_path / "metrics.jsonl").write_bytes(line)
    (step,) = trainer_log.read_steps(config_in(tmp_path))
    assert (step.version, step.advantages.num_tokens, step.advantages.mean) == (2, 700, -0.2)
    assert "loss +0.1000" in step.line()


async def test_what_the_trainer_writes_becomes_what_is_shown(tmp_path: Path) -> None:
    vocabulary = {"Rain": 0, " falls": 1, "<end>": 2}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    line = {
        **{"step": 2, "turn_id": "a", "hint": "One short sentence.", "score": -1, "response_ids": [0, 1, 2]},
        **{"teacher_logprobs": [-0.5, -2.0, -0.1], "old_logprobs": [-1.0, -1.0, -3.0], "advantages": [0.5, -1.0, 2.9]},
    }
    (tmp_path / "teacher_logprobs.jsonl").write_text(json.dumps(line) + "\n")
    broker = MemoryBroker()
    (shown,) = await collect(broker, read_answers(tmp_path), tmp_path)
    await broker.close()
    assert (shown.step, shown.hint, shown.score) == (2, "One short sentence.", -1)
    assert [(token.without, token.hinted, token.advantage) for token in shown.tokens] == [
        (-1.0, -0.5, 0.5),
        (-1.0, -2.0, -1.0),
        (-3.0, -0.1, 2.9),
    ]
    assert [token.text for token in shown.tokens] == list(vocabulary)
