"""The training loop and its teacher: the student's candidates by gRPC, the PRM away, the null-hint control."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Sample
from hintloop_contract.streams import SAMPLES
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import prm_watch
from transformers import AutoModelForCausalLM

from .conftest import Bench, run
from .scripted_gate import never, stop_when


def _fake_prm() -> ModuleType:
    path = Path(__file__).parents[2] / "unit" / "trainer" / "fake_prm.py"
    spec = importlib.util.spec_from_file_location("trainer_fake_prm", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer_fake_prm"] = module
    spec.loader.exec_module(module)
    return module


fake_prm = _fake_prm()
CHOSEN = {
    "advantage": {"estimator": "grpo", "custom_loss_function_path": "topk_reverse_kl.py"},
    "topk_opd": {"top_k": 6, "use_teacher_topk": False},
}


class Model:
    """Scores as a PRM engine with the student's first weights would."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def __call__(self, prompt: list[int], response: list[int], candidates: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        rows = logits.log_softmax(-1)
        own = rows.gather(-1, torch.tensor(response)[:, None])[:, 0].numpy()
        return own, None if candidates is None else rows.gather(-1, torch.tensor(candidates)).numpy()


@pytest.fixture
def prm(bench: Bench) -> Iterator[Any]:
    service = fake_prm.FakePrm(score=Model(bench.folder / "student"), part_tokens=100)
    run(bench, service.start())
    yield service
    run(bench, service.stop())


def hinted(make_sample: Callable[..., Sample], turn: int) -> Sample:
    sample = make_sample(turn, teacher_logprobs=None)
    ids = [11, 12, *unpack(sample.prompt_ids).tolist()]
    return msgspec.structs.replace(sample, hinted_prompt_ids=pack(ids, "int32"))


def config(bench: Bench, service: Any, **sections: Any) -> Any:
    address = {"grpc_address": f"127.0.0.1:{service.port}"}
    return bench.config(**{**CHOSEN, **sections, "prm": {**address, **sections.get("prm", {})}})


def test_the_teacher_is_asked_for_the_students_candidates(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample]
) -> None:
    samples = [hinted(make_sample, turn) for turn in range(4)]
    bench.feed(samples)
    progress, _ = bench.train(config(bench, prm))
    assert (progress.step, progress.num_trained) == (2, 4)
    asked = [request for request in prm.requests if request.candidate_ids.dtype]
    by_prompt = {request.prompt_ids.data: request for request in asked}
    for sample in samples:
        assert sample.hinted_prompt_ids is not None
        assert list(by_prompt[sample.hinted_prompt_ids.data].candidate_ids.shape) == [len(sample.response_ids), 6]
    # Of the first step's, the candidates are those of the first weights on the prompt without the hint.
    first = samples[0]
    prompt, response = unpack(first.prompt_ids).tolist(), unpack(first.response_ids).tolist()
    with torch.no_grad():
        logits = prm.score.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    chosen = np.frombuffer(by_prompt[first.hinted_prompt_ids.data].candidate_ids.data, np.int32).reshape(-1, 6)
    np.testing.assert_array_equal(chosen, logits.topk(6).indices)
    steps = bench.metrics()
    assert all(step["loss"] > 0 and step["seconds_teacher"] > 0 for step in steps)
    status = run(bench, bench.broker.get_status("trainer"))
    assert status["prm"] == "up"


def test_while_the_prm_is_away_the_trainer_waits_and_acknowledges_nothing(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prm_watch, "RETRY_S", 0.1)
    bench.feed([hinted(make_sample, turn) for turn in range(2)])
    original = prm._parts
    seen: list[dict[str, str]] = []

    def parts(index: int, request: Any) -> Any:
        if len(prm.requests) == 2:  # the first is the check at start, then the engine behind goes away for a while
            return [fake_prm.ScorePart(sequence=index, last=True, status="UNAVAILABLE", message="the engine is away")]
        return original(index, request)

    monkeypatch.setattr(prm, "_parts", parts)
    spy = bench.broker.set_status

    async def set_status(service: str, fields: dict[str, str], **how: bool) -> None:
        counts = await bench.broker.counts(SAMPLES)
        seen.append({**fields, "length": str(counts.length)})
        await spy(service, fields, **how)

    monkeypatch.setattr(bench.broker, "set_status", set_status)
    progress, _ = bench.train(config(bench, prm, prm={"null_hint_control": "off"}, training={"max_steps": 1}))
    assert progress.num_trained == 2
    waiting = [fields for fields in seen if fields["phase"] == "asking the PRM failed"]
    assert waiting
    assert "the engine is away" in waiting[0]["detail"]
    assert waiting[0]["length"] == "2"


def test_a_prm_that_comes_late_is_waited_for(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prm_watch, "RETRY_S", 0.1)
    run(bench, prm.stop())
    threading.Timer(1.5, lambda: run(bench, prm.start())).start()
    bench.feed([hinted(make_sample, turn) for turn in range(2)])
    progress, _ = bench.train(config(bench, prm, training={"max_steps": 1}))
    assert progress.num_trained == 2


def test_asked_to_stop_while_the_prm_is_away_it_gives_back_what_it_holds(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample]
) -> None:
    run(bench, prm.stop())
    bench.feed([hinted(make_sample, turn) for turn in range(2)])
    progress, _ = bench.train(config(bench, prm), stop=stop_when(bench, never, timeout_s=1.5))
    assert progress.step == 0
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2


def test_asked_to_stop_while_the_prm_takes_its_time_it_gives_back_what_it_holds(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, answer, asked = threading.Event(), prm.ScoreStream, []

    def ask_to_stop() -> None:
        asked.append(time.monotonic())
        stop.set()

    async def slow(request: Any, context: Any) -> Any:
        if prm.requests:
            threading.Timer(0.2, ask_to_stop).start()
            await asyncio.sleep(600)
        async for part in answer(request, context):
            yield part

    monkeypatch.setattr(prm, "ScoreStream", slow)
    run(bench, prm.stop())
    run(bench, prm.start())
    bench.feed([hinted(make_sample, turn) for turn in range(2)])
    progress, _ = bench.train(config(bench, prm, prm={"null_hint_control": "off"}), stop=stop)
    # Far below the minutes after which the question itself is given up.
    assert (progress.step, time.monotonic() - asked[0] < 60) == (0, True)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2


def test_an_engine_that_scores_no_candidates_is_refused_at_start(bench: Bench, prm: Any) -> None:
    prm.refusal = (fake_prm.grpc.StatusCode.FAILED_PRECONDITION, "vLLM scores no given candidates")
    with pytest.raises(ConfigError, match=r"use_teacher_topk = false.*vLLM scores no given candidates"):
        bench.train(config(bench, prm))


def test_one_sample_that_cannot_be_scored_drops_and_the_others_train(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample]
) -> None:
    # The check at start is the first question; of the collection the last sample is answered first.
    prm.statuses[1] = ("DATA_LOSS", "the log-probability of response token 2 is null")
    bench.feed([hinted(make_sample, turn) for turn in range(3)])
    progress, _ = bench.train(config(bench, prm, prm={"null_hint_control": "off"}, training={"max_steps": 1}))
    assert (progress.step, progress.num_trained) == (1, 2)
    funnel = run(bench, bench.broker.funnel())
    assert funnel.drops == {("train", "teacher_missing"): 1}


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_null_hint_control_can_be_required(
    bench: Bench, prm: Any, make_sample: Callable[..., Sample], shift: float
) -> None:
    exact = prm.score
    prm.score = lambda *asked: (exact(*asked)[0] - shift, exact(*asked)[1])
    bench.feed([make_sample(turn) for turn in range(2)])
    required = {
        "advantage": {"estimator": "on_policy_distillation"},
        "topk_opd": {},
        "prm": {"null_hint_control": "refuse"},
        "training": {"max_steps": 1},
    }
    if shift:
        with pytest.raises(ConfigError, match=r"null_hint_control.*0\.5 nats"):
            bench.train(config(bench, prm, **required))
        assert run(bench, bench.broker.counts(SAMPLES)).length == 2
        return
    progress, _ = bench.train(config(bench, prm, **required))
    assert progress.step == 1
    # A restart compares with the first weights again, though the student has moved on.
    bench.feed([make_sample(turn, version_oldest=3, version_newest=3) for turn in (10, 11)])
    progress, _ = bench.train(config(bench, prm, **required))
    assert progress.step == 2


def test_the_trainer_teaches_itself_without_any_prm(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([hinted(make_sample, turn) for turn in range(4)])
    progress, _ = bench.train(bench.config(prm={"teacher_source": "trainer", "teacher_weights": "current"}))
    assert progress.num_trained == 4
    steps = bench.metrics()
    assert all(step["teacher_minus_student_mean"] != 0 and step["seconds_teacher"] > 0 for step in steps)
    assert all("prm_available" not in step for step in steps)
