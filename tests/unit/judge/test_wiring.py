"""Keys that the chosen backend does not read are said at start."""

from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.wiring import LLM_ONLY, build_deps, without_effect
from structlog.testing import capture_logs

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
