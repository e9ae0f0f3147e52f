from pathlib import Path

import pytest
from hintloop_contract.config import load_config
from hintloop_contract.errors import ConfigError


def written(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    loaded = load_config(environ={"HINTLOOP_PRM__PRM_API_KEY_FILE": written(tmp_path, "k3y\n")})

    assert loaded.config.prm.prm_api_key.get_secret_value() == "k3y"
    assert loaded.origins["prm.prm_api_key"] == "environment"


def test_an_empty_file_leaves_the_key_alone(tmp_path: Path) -> None:
    loaded = load_config(environ={"HINTLOOP_PROXY__API_KEYS_FILE": written(tmp_path, "\n")})

    assert loaded.config.proxy.api_keys == []
    assert "proxy.api_keys" not in loaded.origins


def test_several_keys_in_one_file(tmp_path: Path) -> None:
    loaded = load_config(environ={"HINTLOOP_PROXY__API_KEYS_FILE": written(tmp_path, "one,two\n")})

    assert len(loaded.config.proxy.api_keys) == 2


def test_a_key_whose_own_name_ends_so_is_no_file_of_another(tmp_path: Path) -> None:
    loaded = load_config(environ={"HINTLOOP_GATE__PROBE_FILE": written(tmp_path, "{}")})

    assert loaded.config.gate.probe_file == tmp_path / "secret"


def test_a_variable_in_a_file_may_itself_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[redis]\nurl = "redis://:${WORD}@redis:6379/0"\n', encoding="utf-8")

    loaded = load_config([config], environ={"WORD_FILE": written(tmp_path, "s3cret\n")})

    assert loaded.config.redis.url.get_secret_value() == "redis://:s3cret@redis:6379/0"


def test_both_ways_at_once_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "two")

    with pytest.raises(ConfigError, match="HINTLOOP_PRM__PRM_API_KEY and HINTLOOP_PRM__PRM_API_KEY_FILE are both set"):
        load_config(environ={"HINTLOOP_PRM__PRM_API_KEY": "one", "HINTLOOP_PRM__PRM_API_KEY_FILE": path})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="HINTLOOP_PRM__PRM_API_KEY_FILE names '/no/where', which cannot be read"):
        load_config(environ={"HINTLOOP_PRM__PRM_API_KEY_FILE": "/no/where"})


def test_the_content_of_a_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environ={"HINTLOOP_REDIS__URL_FILE": written(tmp_path, "pass-phrase")})

    assert "pass-phrase" not in str(caught.value)


def test_an_unknown_key_before_the_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prm.prm_api_kee"):
        load_config(environ={"HINTLOOP_PRM__PRM_API_KEE_FILE": written(tmp_path, "k3y")})
