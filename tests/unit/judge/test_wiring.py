"""What configured keys do to the judge that is built of them; keys that the backend does not read are said at start."""

from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.conversation import Exchange
from hintloop_judge.wiring import LLM_ONLY, build_deps, without_effect
from structlog.testing import capture_logs

from .conftest import FakeEndpoint

CHANGED: dict[str, dict[str, Any]] = {
    "opd": {
        "judge_vote_count": 5,
        "judge_temperature": 0.7,
        "hint_selection": "consensus",
        "allow_quoted_hints": True,
    },
    "prm": {
        "judge_url": "http://127.0.0.1:1",
        "judge_api_key": "k",
        "judge_cache_s": 0,
        "judge_cache_entries": 1,
        "judge_model": "m",
        "judge_prompt_dir": "/prompts",
        "hint_max_tokens": 9,
        "hint_temperature": 0.9,
        "quorum": 1.0,
    },
}


def config(backend: str, changes: dict[str, dict[str, Any]]) -> Config:
    return Config.model_validate({**changes, "prm": {**changes.get("prm", {}), "judge_backend": backend}})


def test_keys_without_effect() -> None:
    every = [f"{section}.{name}" for section, names in LLM_ONLY.items() for name in names]
    assert sorted(without_effect(config("rules", CHANGED))) == sorted(every)
    assert without_effect(config("rules", {"opd": {"judge_vote_count": 5, "min_hint_length": 4}})) == [
        "opd.judge_vote_count"
    ]
    assert without_effect(config("rules", {})) == []
    assert without_effect(config("llm", {"opd": CHANGED["opd"]})) == []
    tools = {"prm": {"rules": {"tools": {"bash": {"ignore": True}}}}}
    assert without_effect(config("llm", tools)) == ["prm.rules"]
    assert without_effect(config("rules", tools)) == without_effect(config("rules_then_llm", CHANGED)) == []


@pytest.mark.parametrize(("changes", "keys"), [({"prm": {"quorum": 1.0}}, [["prm.quorum"]]), ({}, [])])
async def test_they_are_said_once_at_start(changes: dict[str, Any], keys: list[list[str]]) -> None:
    broker = MemoryBroker()
    with capture_logs() as logs:
        await build_deps(config("rules", changes), broker)
    assert [line["keys"] for line in logs if "keys" in line] == keys
    await broker.close()


def exchange_of(words: str) -> Exchange:
    return Exchange(
        messages=({"role": "user", "content": "What is rain?"},),
        answer={"role": "assistant", "content": "Water.", "tool_calls": [{"id": "c", "function": {"name": "grep"}}]},
        next_state=({"role": "tool", "tool_call_id": "c", "content": words},),
    )


@pytest.mark.parametrize(
    ("prm", "num_asked"),
    [({}, 2), ({"judge_cache_entries": 1}, 3), ({"judge_cache_s": 0}, 3)],
)
async def test_kept_votes_are_bounded_and_may_be_switched_off(
    endpoint: FakeEndpoint, prm: dict[str, Any], num_asked: int
) -> None:
    broker = MemoryBroker()
    deps = await build_deps(config("llm", {"prm": {"prm_url": endpoint.url, **prm}}), broker)
    await deps.backend.ready()
    endpoint.requests.clear()
    for words in ("one", "two", "one"):
        await deps.backend.judge(exchange_of(words), score=True, hint=False)
    assert len(endpoint.requests) == num_asked
    await deps.backend.close()
    await broker.close()


async def test_prompts_are_taken_from_the_configured_directory(endpoint: FakeEndpoint, tmp_path: Path) -> None:
    (tmp_path / "score.md").write_text("OURS $nonce $request $answer $next_state $reply_format")
    broker = MemoryBroker()
    prm = {"prm_url": endpoint.url, "judge_prompt_dir": str(tmp_path)}
    deps = await build_deps(config("llm", {"prm": prm}), broker)
    await deps.backend.judge(exchange_of("one"), score=True, hint=False)
    assert endpoint.requests[-1]["messages"][0]["content"].startswith("OURS ")
    await deps.backend.close()
    await broker.close()


@pytest.mark.parametrize("backend", ["rules", "rules_then_llm"])
async def test_configured_tools_are_read_by_their_rules(endpoint: FakeEndpoint, backend: str) -> None:
    scores = []
    for rules in ({}, {"tools": {"gr*": {"neutral_exit_codes": [1]}}}, {"tools": {"grep": {"ignore": True}}}):
        broker = MemoryBroker()
        deps = await build_deps(config(backend, {"prm": {"prm_url": endpoint.url, "rules": rules}}), broker)
        opinion = await deps.backend.judge(exchange_of("exit code 1"), score=True, hint=False)
        scores.append(opinion.judgement.score)
        await deps.backend.close()
        await broker.close()
    assert scores == [-1, 0, None]
