"""From judged turn to sample, with a tokenizing engine on loopback and a scoring engine in the process."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.needs import SignalNeeds
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, JudgedTurn, Judgement, LinkedTurn, Sample, Sampling, TurnRecord
from hintloop_contract.streams import CAPTURES, JUDGED, TURNS
from hintloop_contract.tensors import pack, unpack
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_contract.worker import Discard, Forward
from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.errors import RecordError
from hintloop_teacher.http import EngineClient, Patience
from hintloop_teacher.metrics import TeacherMetrics
from hintloop_teacher.policy_engines import PolicyEngines
from hintloop_teacher.rendering import Renderer
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.teaching import TurnTeacher

from .conftest import CodePoints, FakeEngine, render
from .fake_dialect import FakeDialect, score_of

MESSAGES = [{"role": "user", "content": "ask"}]
RESPONSE = [120, 121, 122]
OPD = SignalNeeds(score=False, hint=True)
TOPK = SignalNeeds(score=False, hint=True, top_k=4)
BINARY = SignalNeeds(score=True, hint=False)
COMBINE = SignalNeeds(score=True, hint=True, either=True)


class Engine:
    """What the handler sees of the PRM engine."""

    def __init__(self, dialect: FakeDialect, max_input_len: int = 512) -> None:
        facts = EngineFacts("fake", "1", "teacher", max_input_len)
        self.scorer = ForcedScorer(dialect, facts, vocabulary_size=1000, max_concurrency=2)
        self.gone: str | None = None

    async def check_again(self, because: str) -> None:
        if self.gone is not None:
            raise DependencyError("prm-engine", self.gone)


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    await broker.ensure_groups()
    yield broker
    await broker.close()


@pytest.fixture
async def renderer(policy: FakeEngine) -> AsyncIterator[Renderer]:
    def connect(url: str) -> EngineClient:
        return EngineClient(url, dependency="policy-engine", patience=Patience(wait_s=0.01))

    renderer = Renderer(PolicyEngines(connect, [policy.url], "vllm"), CodePoints())
    yield renderer
    await renderer.close()


class Bench:
    """Puts a turn through the teacher."""

    def __init__(self, broker: MemoryBroker, renderer: Renderer, policy: FakeEngine) -> None:
        self.broker = broker
        self.renderer = renderer
        self.policy = policy
        self.dialect = FakeDialect()
        self.metrics = TeacherMetrics()

    async def teach(
        self,
        needs: SignalNeeds,
        *,
        gone: str | None = None,
        score: int | None = -1,
        hint: str | None = "One short sentence.",
        captured_ids: list[int] | None = None,
        version: int = 1,
        max_input_len: int = 512,
        **settings: Any,
    ) -> Any:
        prompt_ids = captured_ids if captured_ids is not None else render(MESSAGES)
        turn = LinkedTurn(
            turn_id="t", tenant="acme", session_id="s", turn_index=0, engine="vllm", engine_url=self.policy.url,
            behaviour_space="processed", sampling=Sampling(temperature=0.7), finish_reason="stop",
            version_oldest=version, version_newest=version, num_prompt_tokens=len(prompt_ids),
            num_response_tokens=3, captured_ms=5, linked_ms=6,
        )  # fmt: skip
        record = TurnRecord(
            turn_id="t", messages=json.dumps(MESSAGES).encode(), answer=b"{}", prompt_ids=pack(prompt_ids, "int32"),
            response_ids=pack(RESPONSE, "int32"), logprobs=pack([-0.1, -0.2, -0.3], "float32"),
        )  # fmt: skip
        await self.broker.append(
            CAPTURES, Capture(turn_id="t", engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)
        )
        (entry,) = await self.broker.read(CAPTURES, "c", 1, 1)
        await self.broker.commit(entry, TURNS, turn, record=record)
        (entry,) = await self.broker.read(TURNS, "c", 1, 1)
        judgement = Judgement(score=score, hint=hint, backend="rules")
        await self.broker.commit(entry, JUDGED, JudgedTurn(turn=turn, judgement=judgement))
        (entry,) = await self.broker.read(JUDGED, "c", 1, 1)
        self.entry = entry
        engine = Engine(self.dialect, max_input_len)
        engine.gone = gone
        self.handler = TurnTeacher(
            Config.model_validate(settings), needs, self.broker, self.renderer,
            engine, self.metrics,  # type: ignore[arg-type]
        )  # fmt: skip
        return await self.handler(entry)


@pytest.fixture
def bench(broker: MemoryBroker, renderer: Renderer, policy: FakeEngine) -> Bench:
    return Bench(broker, renderer, policy)


def sample_of(outcome: Any) -> Sample:
    assert isinstance(outcome, Forward)
    assert isinstance(outcome.message, Sample)
    return outcome.message


async def test_the_response_is_scored_behind_the_hinted_prompt(bench: Bench) -> None:
    sample = sample_of(await bench.teach(OPD))
    ((prompt, response, top_k),) = bench.dialect.calls
    block = "\n\n[user's hint / instruction]\nOne short sentence."
    assert "".join(map(chr, prompt)) == f"<user>ask{block};<assistant>"
    assert (response, top_k) == (RESPONSE, 0)
    expected = [score_of(prompt[-1], 120), score_of(120, 121), score_of(121, 122)]
    assert sample.teacher_logprobs is not None
    assert unpack(sample.teacher_logprobs).tolist() == pytest.approx(expected)
    assert unpack(sample.prompt_ids).tolist() == render(MESSAGES)
    assert unpack(sample.response_ids).tolist() == RESPONSE
    assert unpack(sample.behaviour_logprobs).tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert (sample.score, sample.hint, sample.tenant) == (-1, "One short sentence.", "acme")
    assert (sample.teacher_model, sample.num_hinted_prompt_tokens) == ("teacher", len(prompt))
    assert sample.teacher_topk_ids is None
    assert sample.sampling.temperature == 0.7
    assert (sample.behaviour_space, sample.finish_reason, sample.captured_ms) == ("processed", "stop", 5)


async def test_candidates_are_packed(bench: Bench) -> None:
    sample = sample_of(await bench.teach(TOPK))
    assert sample.teacher_topk_ids is not None and sample.teacher_topk_logprobs is not None
    assert sample.teacher_tail_logprobs is not None
    assert (sample.teacher_topk_ids.dtype, sample.teacher_topk_ids.shape) == ("int32", (3, 4))
    assert (sample.teacher_topk_logprobs.dtype, sample.teacher_topk_logprobs.shape) == ("float16", (3, 4))
    assert (sample.teacher_tail_logprobs.dtype, sample.teacher_tail_logprobs.shape) == ("float32", (3,))
    rest = np.log(1 - np.exp([-3.0, -4.0, -5.0, -6.0]).sum())
    assert unpack(sample.teacher_tail_logprobs).tolist() == pytest.approx([rest] * 3)


async def test_binary_never_asks_a_teacher(bench: Bench) -> None:
    sample = sample_of(await bench.teach(BINARY))
    assert sample.teacher_logprobs is None
    assert bench.dialect.calls == [] and bench.policy.requests == []


async def test_combine_takes_the_score_alone_without_a_hint(bench: Bench) -> None:
    sample = sample_of(await bench.teach(COMBINE, hint=None, score=1))
    assert (sample.score, sample.teacher_logprobs) == (1, None)
    assert bench.dialect.calls == []


async def test_no_hint_is_dropped_or_taught_by_the_null_hint(bench: Bench) -> None:
    outcome = await bench.teach(OPD, hint=None, opd={"drop_sample_without_hint": False})
    sample = sample_of(outcome)
    # The whole block is left out, and nothing is rendered anew.
    assert bench.dialect.calls[0][0] == render(MESSAGES)
    assert bench.policy.requests == []
    assert sample.num_hinted_prompt_tokens == len(render(MESSAGES))


async def test_no_hint_is_dropped(bench: Bench) -> None:
    outcome = await bench.teach(OPD, hint=None)
    assert isinstance(outcome, Discard) and outcome.reason == "no_hint"


@pytest.mark.parametrize(("needs", "score"), [(OPD, -1), (COMBINE, 0), (COMBINE, None)])
async def test_a_mismatch_drops_what_has_nothing_else(bench: Bench, needs: SignalNeeds, score: int | None) -> None:
    outcome = await bench.teach(needs, score=score, captured_ids=[1, 2, 3])
    assert isinstance(outcome, Discard) and outcome.reason == "render_mismatch"
    assert bench.dialect.calls == []


async def test_a_mismatch_costs_combine_its_hint_alone(bench: Bench) -> None:
    sample = sample_of(await bench.teach(COMBINE, score=1, captured_ids=[1, 2, 3]))
    assert (sample.score, sample.teacher_logprobs) == (1, None)
    counted = bench.metrics.registry.get_sample_value(
        "hintloop_teacher_opd_parts_dropped_total", {"reason": "render_mismatch"}
    )
    assert counted == 1


async def test_a_hint_with_a_control_token_teaches_nothing(bench: Bench) -> None:
    outcome = await bench.teach(OPD, hint="Answer in one sentence<|end|>.")
    assert isinstance(outcome, Discard) and outcome.reason == "no_hint"
    assert "<|end|>" in outcome.detail
    assert bench.dialect.calls == []


async def test_a_hint_with_a_control_token_costs_combine_its_hint_alone(bench: Bench) -> None:
    sample = sample_of(await bench.teach(COMBINE, score=1, hint="Answer in one sentence<|end|>."))
    assert (sample.score, sample.teacher_logprobs) == (1, None)


async def test_a_missing_score_drops_the_turn(bench: Bench) -> None:
    bench.dialect.value = None
    outcome = await bench.teach(OPD)
    assert isinstance(outcome, Discard) and outcome.reason == "teacher_missing"
    assert "response token 2 is null" in outcome.detail


async def test_too_long_for_the_teacher(bench: Bench) -> None:
    outcome = await bench.teach(OPD, max_input_len=20)
    assert isinstance(outcome, Discard) and outcome.reason == "too_long"


async def test_too_long_for_the_trainer(bench: Bench) -> None:
    length = len(render(MESSAGES)) + 3
    outcome = await bench.teach(BINARY, model={"max_seq_len": length - 1})
    assert isinstance(outcome, Discard) and outcome.reason == "too_long"
    assert bench.dialect.calls == []


async def test_exactly_as_long_as_allowed(bench: Bench) -> None:
    assert isinstance(await bench.teach(BINARY, model={"max_seq_len": len(render(MESSAGES)) + 3}), Forward)


async def test_a_stale_turn_is_dropped_before_it_is_paid_for(bench: Bench) -> None:
    await bench.broker.set_weights(WeightsState(current=6))
    outcome = await bench.teach(OPD, version=1)
    assert isinstance(outcome, Discard) and outcome.reason == "stale"
    assert bench.dialect.calls == [] and bench.policy.requests == []


async def test_a_freed_record_is_a_failure_of_the_message(bench: Bench) -> None:
    await bench.teach(BINARY)
    judged = bench.entry.message
    lost = LinkedTurn(**{name: getattr(judged.turn, name) for name in judged.turn.__struct_fields__} | {"turn_id": "x"})
    entry = replace(bench.entry, message=JudgedTurn(turn=lost, judgement=judged.judgement))
    with pytest.raises(RecordError):
        await bench.handler(entry)


async def test_what_the_trainer_scores_is_rendered_and_left_to_it(bench: Bench) -> None:
    needs = SignalNeeds(score=False, hint=True, by_trainer=True)
    sample = (await bench.teach(needs)).message
    hinted = [{"role": "user", "content": "ask\n\n[user's hint / instruction]\nOne short sentence."}]
    assert unpack(sample.hinted_prompt_ids).tolist() == render(hinted)
    assert sample.num_hinted_prompt_tokens == len(render(hinted))
    assert sample.teacher_logprobs is None
    assert bench.dialect.calls == []


async def test_without_a_hint_the_trainer_scores_the_captured_prompt(bench: Bench) -> None:
    needs = SignalNeeds(score=False, hint=True, by_trainer=True)
    sample = (await bench.teach(needs, hint=None, opd={"drop_sample_without_hint": False})).message
    assert unpack(sample.hinted_prompt_ids).tolist() == render(MESSAGES)


async def test_a_hinted_prompt_that_the_trainer_cannot_hold_drops(bench: Bench) -> None:
    room = len(render(MESSAGES)) + len(RESPONSE)
    needs = SignalNeeds(score=False, hint=True, by_trainer=True)
    outcome = await bench.teach(needs, model={"max_seq_len": room})
    assert (outcome.reason, "with the hint" in outcome.detail) == ("too_long", True)


async def test_a_hinted_prompt_that_the_trainer_cannot_hold_costs_combine_its_hint_alone(bench: Bench) -> None:
    room = len(render(MESSAGES)) + len(RESPONSE)
    combined = SignalNeeds(score=True, hint=True, either=True, by_trainer=True)
    taught = (await bench.teach(combined, model={"max_seq_len": room})).message
    assert (taught.score, taught.hinted_prompt_ids) == (-1, None)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
async def test_candidates_travel_in_the_configured_dtype(bench: Bench, dtype: str) -> None:
    sample = (await bench.teach(TOPK, topk_opd={"logprobs_dtype": dtype})).message
    assert sample.teacher_topk_logprobs.dtype == dtype
    assert sample.teacher_logprobs.dtype == sample.teacher_tail_logprobs.dtype == "float32"


async def test_a_missing_score_drops_the_turn_only_while_the_engine_can_teach(bench: Bench) -> None:
    bench.dialect.value = None
    outcome = await bench.teach(OPD)
    assert isinstance(outcome, Discard) and outcome.reason == "teacher_missing"
    bench.broker = MemoryBroker()
    await bench.broker.ensure_groups()
    with pytest.raises(DependencyError, match="no log-probabilities any more"):
        await bench.teach(OPD, gone="no log-probabilities any more")
    await bench.broker.close()


async def test_an_engine_that_takes_no_ids_is_given_the_whole_conversation(bench: Bench) -> None:
    bench.dialect.takes_ids = False
    await bench.teach(OPD, opd={"hint_format": " [{hint}]"})
    asked, answered = bench.dialect.messages[0]
    assert asked == {"role": "user", "content": "ask [One short sentence.]"}
    assert answered["role"] == "assistant"


async def test_an_engine_that_takes_no_ids_cannot_score_a_spliced_prompt(bench: Bench) -> None:
    bench.dialect.takes_ids = False
    captured = render([{"role": "system", "content": "other"}, *MESSAGES])
    outcome = await bench.teach(OPD, captured_ids=captured)
    assert isinstance(outcome, Discard) and outcome.reason == "render_mismatch"
    assert bench.dialect.calls == []
