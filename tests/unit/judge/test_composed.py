"""Rules first, the model for what they leave open."""

from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.backends import Opinion
from hintloop_judge.composed import RulesThenLlm
from hintloop_judge.conversation import Exchange
from hintloop_judge.wiring import build_deps

from .conftest import FakeEndpoint, completion

CALL = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}


def exchange(*next_state: dict[str, Any]) -> Exchange:
    answer = {"role": "assistant", "content": "A long text.", "tool_calls": [CALL]}
    return Exchange(({"role": "user", "content": "What is rain?"},), answer, next_state)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


async def judged(endpoint: FakeEndpoint, *next_state: dict[str, Any], **prm: Any) -> tuple[Opinion, list[str]]:
    """The opinion, and the questions that the model was asked."""

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "response_format" in body or "n" in body:
            return 400, {}
        hint = "[HINT_START]The model's own hint.[HINT_END]"
        return 200, completion(hint if "[HINT_START]" in body["messages"][0]["content"] else "\\boxed{1}")

    endpoint.answer = answer
    section = {"prm_url": endpoint.url, "judge_backend": "rules_then_llm", "judge_cache_s": 0, **prm}
    config = Config.model_validate({"prm": section, "opd": {"judge_vote_count": 1}})
    broker = MemoryBroker()
    deps = await build_deps(config, broker)
    assert await deps.backend.ready()
    endpoint.requests.clear()
    opinion = await deps.backend.judge(exchange(*next_state), score=True, hint=True)
    asked = ["hint" if "[HINT_START]" in body["messages"][0]["content"] else "score" for body in endpoint.requests]
    await deps.backend.close()
    await broker.close()
    return opinion, sorted(asked)


@pytest.mark.parametrize(
    ("next_state", "asked", "score", "hint"),
    [
        ([user("Too long. One short sentence please.")], [], -1, "One short sentence."),
        ([user("Perfect, thanks!")], ["hint"], 1, "The model's own hint."),
        ([tool("Error: no such file"), user("and now?")], ["hint"], -1, "The model's own hint."),
        ([user("What is snow?")], ["hint", "score"], 1, "The model's own hint."),
        ([tool("some listing")], ["hint", "score"], 1, "The model's own hint."),
    ],
)
async def test_the_model_is_asked_what_the_rules_leave_open(
    endpoint: FakeEndpoint, next_state: list[dict[str, Any]], asked: list[str], score: int, hint: str
) -> None:
    opinion, questions = await judged(endpoint, *next_state)
    assert questions == asked
    assert (opinion.judgement.score, opinion.judgement.hint) == (score, hint)
    assert opinion.judgement.backend == "rules_then_llm"
    assert len(opinion.judgement.votes) == 1 + len(asked)
    assert opinion.judgement.model == ("judge-model" if asked else None)


async def test_ignored_tools_are_shown_to_neither(endpoint: FakeEndpoint) -> None:
    rules = {"tools": {"search": {"ignore": True}}}
    opinion, questions = await judged(endpoint, tool("Error: nothing found"), rules=rules)
    assert (opinion.judgement.score, questions) == (None, [])
    opinion, questions = await judged(endpoint, tool("Error: nothing found"), user("What is snow?"), rules=rules)
    assert questions == ["hint", "score"]
    assert not any("nothing found" in body["messages"][0]["content"] for body in endpoint.requests)


async def test_it_says_what_it_is() -> None:
    broker = MemoryBroker()
    config = Config.model_validate({"prm": {"judge_backend": "rules_then_llm", "prm_url": "http://127.0.0.1:9"}})
    deps = await build_deps(config, broker)
    assert isinstance(deps.backend, RulesThenLlm)
    assert deps.backend.describe()["backend"] == "rules_then_llm"
    assert deps.backend.describe()["url"] == "http://127.0.0.1:9/v1"
    assert not await deps.backend.ready()
    settled = await deps.backend.judge(exchange(user("Too long. One short sentence please.")), score=True, hint=True)
    assert settled.judgement.score == -1, "what the rules settle needs no engine"
    with pytest.raises(DependencyError):
        await deps.backend.judge(exchange(user("What is snow?")), score=True, hint=True)
    await deps.backend.close()
    await broker.close()
