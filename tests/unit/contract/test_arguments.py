import os
from pathlib import Path

import pytest
from hintloop_contract.config import parse_arguments


def config_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_files_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = config_file(tmp_path, "one.toml", "[proxy]\nport = 1001\nmax_captures = 7\n")
    second = config_file(tmp_path, "two.toml", "[proxy]\nport = 1002\n")
    settings = config_file(tmp_path, "settings.json", '{"opd": {"judge_vote_count": 5}}')
    monkeypatch.setenv("HINTLOOP_CONFIG", os.pathsep.join([first, second]))
    monkeypatch.setenv("HINTLOOP_SETTINGS", settings)

    config = parse_arguments("service", []).config

    assert (config.proxy.port, config.proxy.max_captures, config.opd.judge_vote_count) == (1002, 7, 5)


def test_arguments_stand_above_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINTLOOP_CONFIG", str(tmp_path / "absent.toml"))
    given = config_file(tmp_path, "one.toml", "[proxy]\nport = 1001\n")

    assert parse_arguments("service", ["--config", given]).config.proxy.port == 1001
