"""The llm judge against a real engine. The small model judges badly; its votes are read or failed with a reason."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hintloop_contract.config.schema import OpdSection, PrmSection
from hintloop_judge.conversation import Exchange
from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.llm import LlmBackend
from hintloop_judge.metrics import JudgeMetrics
from hintloop_judge.probing import Abilities
from hintloop_judge.prompts import load_prompts

pytestmark = pytest.mark.engine

EXCHANGE = Exchange(
    messages=({"role": "user", "content": "What is rain?"},),
    answer={"role": "assistant", "content": "Rain is water that falls from clouds. It is wet. It makes puddles."},
    next_state=({"role": "user", "content": "Too long. One short sentence please."},),
)


@pytest.fixture
async def backend(vllm_policy: Any) -> AsyncIterator[LlmBackend]:
    prm = PrmSection(prm_url=vllm_policy.base_url, hint_max_tokens=96, timeout_s=180)
    opd = OpdSection(judge_temperature=0.7, judge_vote_count=3)
    backend = LlmBackend(opd, prm, ChatEndpoint(prm), load_prompts(), JudgeMetrics())
    yield backend
    await backend.close()


async def test_a_schema_gives_votes_that_can_be_read(backend: LlmBackend, vllm_policy: Any) -> None:
    assert await backend.ready()
    assert backend.abilities == Abilities(structured_output=True, several_choices=True)
    assert backend.model == vllm_policy.name
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    scores, hints = opinion.judgement.votes[:3], opinion.judgement.votes[3:]
    assert len(hints) == 3
    assert [vote.failed for vote in scores] == [None] * 3
    assert {vote.score for vote in scores} <= {-1, 0, 1}
    assert opinion.judgement.score in (-1, 0, 1)
    for vote in hints:
        assert vote.failed is None or "hint_max_tokens" in vote.failed


async def test_markers_are_read_or_failed_with_a_reason(backend: LlmBackend) -> None:
    backend._abilities = Abilities(structured_output=False, several_choices=True)
    opinion = await backend.judge(EXCHANGE, score=True, hint=True)
    for vote in opinion.judgement.votes[:3]:
        assert (vote.score in (-1, 0, 1)) != bool(vote.failed)
    for vote in opinion.judgement.votes[3:]:
        assert vote.score is None
    assert len(opinion.judgement.votes) == 6
