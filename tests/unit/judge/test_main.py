"""The launcher: what a user can mend is said in a line, without a traceback."""

import socket
import sys
from pathlib import Path

import pytest
from hintloop_judge.__main__ import main


def test_a_configuration_that_cannot_be_used_ends_in_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = {"prm.judge_prompt_dir": tmp_path, "redis.url": "redis://127.0.0.1:9/0"}
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    # Logging is the process's, and would stay set up for the tests after this one.
    monkeypatch.setattr("hintloop_judge.__main__.configure_logging", lambda *args: None)
    monkeypatch.setattr(sys, "argv", ["judge", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"judge: prm.judge_prompt_dir {str(tmp_path)!r} holds neither score.md nor hint.md\n"
    )


def test_a_port_that_is_taken_ends_in_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"prm.judge_backend": "rules", "prm.port": port, "redis.url": "redis://127.0.0.1:9/0"}
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        monkeypatch.setattr("hintloop_judge.__main__.configure_logging", lambda *args: None)
        monkeypatch.setattr(sys, "argv", ["judge", *flags])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert f"prm.port {port} cannot be listened on: Address already in use" in capsys.readouterr().err
