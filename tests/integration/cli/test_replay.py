"""Recorded turns run again: real Redis, real judge, teacher and trainer, and an engine on the wire."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.scripted.scoring_engine import SIZE, WireEngine, rendered, score_of, served
from tests.scripted.student import save_student

QUESTION = [{"role": "user", "content": "ask"}]
RESPONSE = "No.;"
COMPLAINT, PRAISE = "Please answer in one short sentence.", "Thanks, that is perfect!"
HINT = "Answer in one short sentence."
RULES = "[prm]\njudge_backend = 'rules'\n"
#: What a renderer and scorer is asked; anything else would be a change of it.
HARMLESS = {"/tokenize", "/v1/models", "/v1/completions", "/version", "/health", "/inference/v1/generate"}


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


def turn(turn_id: str, reaction: str | None, **changes: Any) -> dict[str, Any]:
    """A turn as the engine on the wire would have served it."""
    return {
        "turn_id": turn_id,
        "session": {"session_id": f"s-{turn_id}"},
        "messages": QUESTION,
        "answer": {"role": "assistant", "content": RESPONSE},
        "next_state": [] if reaction is None else [{"role": "user", "content": reaction}],
        "prompt_ids": ids_of(rendered(QUESTION)),
        "response_ids": ids_of(RESPONSE),
        "logprobs": [-0.5] * len(RESPONSE),
        "finish_reason": "stop",
        "versions": {"oldest": 7, "newest": 7},
        **changes,
    }


def write(path: Path, turns: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in turns), encoding="utf-8")
    return path


def command(tmp_path: Path, file: Path, config: str, *more: str) -> list[str]:
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    arguments = ["replay", "run", str(file), "--config", str(tmp_path / "config.toml"), "--out", str(tmp_path / "out")]
    return [sys.executable, "-m", "hintloop", *arguments, *more]


async def replayed(arguments: Sequence[str]) -> str:
    """Run it to its end; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def results(tmp_path: Path, side: str = "a") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "out" / f"results-{side}.jsonl").read_text().splitlines()]


def summary(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    return found


@pytest.fixture
async def engine() -> AsyncIterator[WireEngine]:
    async with served(WireEngine("vllm")) as engine:
        yield engine


async def test_a_killed_run_goes_on_and_every_turn_has_one_result_on_each_side(tmp_path: Path) -> None:
    reactions = itertools.cycle([COMPLAINT, PRAISE, "ok", None])
    turns = [turn(f"t{place}", next(reactions)) for place in range(320)]
    file = write(tmp_path / "turns.jsonl", turns)
    other = tmp_path / "short.toml"
    other.write_text("[opd]\nmax_hint_length = 20\n", encoding="utf-8")
    config = f"{RULES}[advantage]\nestimator = 'combine'\n"
    arguments = command(tmp_path, file, config, "--until", "judge", "--compare", str(other))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, *arguments[3:], stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == -signal.SIGKILL
    assert num_judged(tmp_path / "out" / "replay.sqlite3") == 40
    assert not (tmp_path / "out" / "summary.json").exists()

    said = await replayed(arguments)
    expected = {0: ("judged", -1), 1: ("judged", 1), 2: ("dropped", 0), 3: ("dropped", None)}
    for side in ("a", "b"):
        found = results(tmp_path, side)
        assert [one["turn_id"] for one in found] == [one["turn_id"] for one in turns]
        for place, one in enumerate(found):
            assert (one["outcome"], one.get("judgement", {}).get("score")) == expected[place % 4]
    hints = {side: {one.get("judgement", {}).get("hint") for one in results(tmp_path, side)} for side in "ab"}
    assert hints == {"a": {HINT, None}, "b": {None}}
    figures = summary(tmp_path)
    assert figures["sides"]["a"]["dropped"] == {"judge:no_signal": 80, "link:no_next_state": 80}
    assert figures["agreement"]["hints"] == {"only_a": 80, "neither": 160, "same": 0}
    assert figures["agreement"]["score_kappa"] == 1.0
    assert "hint from a alone" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 3
    # It holds this replay now; the report is written anew, and nothing is run.
    assert "holds this replay already" in await replayed(arguments)


#: The command, as a machine would run it that fails once forty turns were judged.
KILLED = """
import os, signal
from hintloop.app import main
from hintloop.replay.store import Store

judged, left = Store.judged, [40]

def counted(*words):
    judged(*words)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

Store.judged = counted
main()
"""


def num_judged(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (number,) = connection.execute("SELECT COUNT(*) FROM turns WHERE judgement IS NOT NULL").fetchone()
    return int(number)


def attached(engine: WireEngine, student: str) -> str:
    """A configuration of an engine that both renders and scores."""
    return (
        f"[model]\nstudent_model_path = '{student}'\ndtype = 'float32'\nmax_seq_len = 128\n"
        f"[rollout]\nengine = 'vllm'\nrollout_batch_size = 2\n[policy]\nengines = ['{engine.url}']\n"
        f"[prm]\nprm_url = '{engine.url}'\nengine = 'vllm'\njudge_backend = 'rules'\n"
        "[opd]\nhint_format = '~{hint}~'\n[advantage]\nestimator = 'on_policy_distillation'\n"
        "[training]\ntrain_batch_size = 2\n[metrics]\ntensorboard = false\n"
    )


async def test_the_teacher_scores_what_it_can_verify_and_drops_the_rest(tmp_path: Path, engine: WireEngine) -> None:
    file = write(
        tmp_path / "turns.jsonl",
        [
            turn("hinted", COMPLAINT),
            turn("praised", PRAISE),
            turn("other-prompt", COMPLAINT, prompt_ids=ids_of("something else was served")),
            turn("without-ids", COMPLAINT, prompt_ids=None, response_ids=None, logprobs=None),
            turn("damaged", COMPLAINT, logprobs=[-0.5, None, -0.5, -0.5]),
            turn("elsewhere", COMPLAINT, sampling={"temperature": 0.5}, behaviour_space="after_temperature"),
        ],
    )
    config = attached(engine, save_student(tmp_path / "student"))
    await replayed(command(tmp_path, file, config, "--until", "teacher"))
    found = {one["turn_id"]: one for one in results(tmp_path)}
    ids = ids_of(">" + RESPONSE)
    expected = [score_of(before, token) for before, token in itertools.pairwise(ids)]
    for name in ("hinted", "elsewhere"):
        assert found[name]["outcome"] == "taught"
        assert found[name]["sample"]["teacher_logprobs"] == pytest.approx(expected, abs=1e-6)
        assert found[name]["sample"]["hint"] == HINT
    reasons = {name: one.get("reason") for name, one in found.items()}
    assert reasons == {
        "hinted": None,
        "praised": "no_hint",
        "other-prompt": "render_mismatch",
        "without-ids": "ids_missing",
        "damaged": "logprob_missing",
        "elsewhere": None,
    }
    side = summary(tmp_path)["sides"]["a"]
    # The second is of temperature 0.5: no difference is told of it.
    assert (side["advantages"]["tokens"], side["incomparable"]) == (len(RESPONSE), 1)
    assert side["advantages"]["mean"] == pytest.approx(sum(expected) / 4 + 0.5, abs=1e-4)
    assert set(engine.paths) <= HARMLESS


async def test_the_trainer_makes_its_steps_and_no_engine_hears_of_them(tmp_path: Path, engine: WireEngine) -> None:
    turns = [turn(f"t{place}", COMPLAINT) for place in range(5)]
    mixed = turn("mixed", COMPLAINT, versions={"oldest": 6, "newest": 7})
    file = write(tmp_path / "turns.jsonl", [*turns, mixed])
    student = tmp_path / "student"
    tiny_student(student)
    environment = {"HINTLOOP_REDIS__URL": "redis://127.0.0.1:9/0", "HINTLOOP_PUBLISHING__TRANSPORT": "disk"}
    with pytest.MonkeyPatch.context() as patch:
        # A deployment's own settings are not taken for the replay's.
        for name, value in environment.items():
            patch.setitem(os.environ, name, value)
        await replayed(command(tmp_path, file, attached(engine, str(student)), "--until", "trainer"))
    found = results(tmp_path)
    assert Counter(one["outcome"] for one in found) == {"trained": 4, "left": 1, "dropped": 1}
    assert found[-1]["reason"] == "mixed_version"
    (left,) = (one for one in found if one["outcome"] == "left")
    assert left["detail"] == "fewer than rollout.rollout_batch_size = 2 were left"
    assert set(engine.paths) <= HARMLESS
    side = tmp_path / "out" / "a"
    lines = [json.loads(line) for line in (side / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    kept = [json.loads(line) for line in (side / "teacher_logprobs.jsonl").read_text().splitlines()]
    assert {one["turn_id"] for one in kept} == {one["turn_id"] for one in found if one["outcome"] == "trained"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Advantages by place in the answer" in page
    assert (side / "weights" / "current" / "model.safetensors").is_file()


def tiny_student(folder: Path) -> None:
    """A random student whose tokens are the characters of ASCII."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    save_student(folder)
    config = Qwen3Config(
        vocab_size=SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_a_run_that_ends_while_it_trains_trains_every_turn_once(
    tmp_path: Path, engine: WireEngine, number: signal.Signals
) -> None:
    file = write(tmp_path / "turns.jsonl", [turn(f"t{place}", COMPLAINT) for place in range(24)])
    student = tmp_path / "student"
    tiny_student(student)
    arguments = command(tmp_path, file, attached(engine, str(student)), "--until", "trainer")
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.DEVNULL)
    metrics = tmp_path / "out" / "a" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while len(lines_of(metrics)) < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    process.send_signal(number)
    await process.wait()
    await replayed(arguments)
    found = results(tmp_path)
    assert Counter(one["outcome"] for one in found) == {"trained": 24}
    kept = [one["turn_id"] for one in lines_of(tmp_path / "out" / "a" / "teacher_logprobs.jsonl")]
    assert Counter(kept) == Counter(one["turn_id"] for one in found)
    steps = Counter(one["trained"]["step"] for one in found)
    assert steps == dict.fromkeys(range(1, 13), 2)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
