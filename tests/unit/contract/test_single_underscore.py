"""Variables with one underscore between section and key."""

from __future__ import annotations

import pytest
from hintloop_contract.config import load_config
from hintloop_contract.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("HINTLOOP_REDIS_URL", "HINTLOOP_REDIS__URL"),
        ("HINTLOOP_REDIS_URL_FILE", "HINTLOOP_REDIS__URL_FILE"),
        ("HINTLOOP_PRM_JUDGE_API_KEY", "HINTLOOP_PRM__JUDGE_API_KEY"),
    ],
)
def test_one_underscore_is_refused_with_the_right_name(given: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"{given} .*: {right}$"):
        load_config(environ={given: "x"})


@pytest.mark.parametrize(
    "name",
    [
        *("HINTLOOP_CONFIG", "HINTLOOP_SETTINGS", "HINTLOOP_PYTHON", "HINTLOOP_PROFILE", "HINTLOOP_DEVICE"),
        *("HINTLOOP_LORA_RANK", "HINTLOOP_LORA_SLOTS", "HINTLOOP_TOOL_CALL_PARSER", "HINTLOOP_ENGINES_DIR"),
        *("HINTLOOP_ENGINE_THREADS", "HINTLOOP_STARTED_AT", "HINTLOOP_SKIP_COMPOSE", "HINTLOOP_COMPOSE_LOGS"),
    ],
)
def test_other_variables_of_the_project_are_left_alone(name: str) -> None:
    assert not load_config(environ={name: "1"}).origins
