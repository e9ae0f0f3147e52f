from pathlib import Path

import pytest
from hintloop.commands import app
from typer.testing import CliRunner


def test_the_configuration_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "one.toml", tmp_path / "two.toml"
    first.write_text("[proxy]\nport = 1001\n", encoding="utf-8")
    second.write_text("[proxy]\nport = 1002\n", encoding="utf-8")
    monkeypatch.setenv("HINTLOOP_CONFIG", f"{first}:{second}")

    said = CliRunner().invoke(app, ["config", "show"], env={"COLUMNS": "300"}).output

    (line,) = [line for line in said.splitlines() if "proxy.port" in line]
    assert "1002" in line
    assert "two.toml" in line
