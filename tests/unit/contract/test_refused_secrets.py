"""A refused value of a secret key is not shown; what is secret, its type says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop_contract.config import load_config
from hintloop_contract.errors import ConfigError


@pytest.mark.parametrize(
    "key",
    ["redis.sentinel_password", "redis.url", "console.password", "console.metrics_token", "prm.caller_key"],
)
def test_a_refused_secret_is_not_shown(key: str, tmp_path: Path) -> None:
    section, name = key.split(".")
    path = tmp_path / "config.toml"
    path.write_text(f"[{section}]\n{name} = 918273645\n")
    with pytest.raises(ConfigError, match=key) as refused:
        load_config([path], environ={})
    assert "918273645" not in str(refused.value)


def test_a_refused_value_that_is_no_secret_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[training]\nseed = "918273645x"\n')
    with pytest.raises(ConfigError, match="918273645x"):
        load_config([path], environ={})
