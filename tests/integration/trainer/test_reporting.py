"""What a run leaves in its files, and what it shows while it trains."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from hintloop_contract.errors import ConfigError
from hintloop_contract.listening import listen
from hintloop_contract.messages import Sample
from hintloop_trainer.megatron.parallel import free_port
from hintloop_trainer.metrics.jsonl import surviving

from .conftest import Bench


def read(bench: Bench, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (bench.folder / name).read_text().splitlines()]


def scrape(port: int, until: str, stop: threading.Event, found: list[str]) -> None:
    """Keep the first answer that holds ``until``, and have the trainer stop."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, ConnectionError):
            text = ""
        if until in text:
            found.append(text)
            break
        time.sleep(0.05)
    stop.set()


def test_prometheus_is_served_while_training_goes_on(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(0, num_prompt=80), *(make_sample(turn) for turn in range(1, 5))])
    port, stop, found = free_port(), threading.Event(), list[str]()
    scraping = threading.Thread(target=scrape, args=(port, "hintloop_trainer_steps_total 2.0", stop, found))
    scraping.start()
    bench.train(bench.config(training={"max_steps": None}, metrics={"port": port}), stop=stop)
    scraping.join()
    (text,) = found
    lines = read(bench, "metrics.jsonl")
    assert f"hintloop_trainer_loss {lines[1]['loss']}" in text
    # Nobody listens any more, and an over-long sample was counted.
    listen("127.0.0.1", port, "metrics").close()
    assert lines[1]["dropped_too_long"] == 1
    assert 'hintloop_trainer_dropped{reason="too_long"} 1.0' in text


def test_a_new_run_shows_no_figures_of_the_steps_before_it(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    bench.train(bench.config(training={"max_steps": 1}))
    before = bench.background.run(bench.broker.get_status("trainer"))
    assert float(before["grad_norm"]) > 0
    asked_to_end = threading.Event()
    asked_to_end.set()
    bench.train(bench.config(training={"max_steps": None}), stop=asked_to_end)
    after = bench.background.run(bench.broker.get_status("trainer"))
    assert (after["step"], after["trained"]) == (before["step"], before["trained"])
    assert "grad_norm" not in after


def test_a_port_that_is_taken_is_refused_before_any_step(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    with listen("127.0.0.1", 0, "metrics") as taken:
        with pytest.raises(ConfigError, match=r"metrics\.port .* cannot be listened on"):
            bench.train(bench.config(metrics={"port": taken.getsockname()[1]}))
    assert not (bench.folder / "metrics.jsonl").exists()


def test_steps_that_a_crash_lost_are_void_and_traced_once(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    config = bench.config(training={"save_interval": 1, "keep_checkpoints": 5}, opd={"log_teacher_logprobs": True})
    bench.train(config)
    # As if the process had been killed before the second checkpoint was durable.
    (newest,) = (bench.folder / "checkpoints").glob("step-*2")
    shutil.rmtree(newest)
    bench.feed([make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)])
    bench.train(bench.config(training={"max_steps": 1}, opd={"log_teacher_logprobs": True}))

    lines = read(bench, "metrics.jsonl")
    assert [(line["step"], line["from_step"]) for line in lines] == [(1, 0), (2, 0), (2, 1)]
    assert lines[0]["run"] == lines[1]["run"] != lines[2]["run"]
    kept = surviving((bench.folder / "metrics.jsonl").read_text().splitlines())
    assert kept == [lines[0], lines[2]]
    traced = [(line["step"], line["turn_id"]) for line in read(bench, "teacher_logprobs.jsonl")]
    assert sorted(traced) == [(1, "turn-0000"), (1, "turn-0001"), (2, "turn-0010"), (2, "turn-0011")]


def test_answers_are_traced_in_the_first_steps_only(
    bench: Bench, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hintloop_trainer.report_part.TRACED_STEPS", 1)
    monkeypatch.setattr("hintloop_trainer.traces.TRACED_STEPS", 1)
    bench.feed([make_sample(turn) for turn in range(4)])
    _, learner = bench.train(bench.config(opd={"log_teacher_logprobs": True}, console={"history": False}))
    assert {line["step"] for line in read(bench, "teacher_logprobs.jsonl")} == {1}
    # After them no rank collects them any more.
    assert not learner.objective.traced
