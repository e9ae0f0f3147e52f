"""The launcher: what a user can mend is said in a line, without a traceback."""

import socket
import sys
from pathlib import Path

import pytest
from hintloop_contract.errors import HintloopError
from hintloop_teacher import wiring
from hintloop_teacher.__main__ import main
from hintloop_teacher.errors import ProbeError

from .test_app import save_model


def run(monkeypatch: pytest.MonkeyPatch, model: Path, *more: str) -> object:
    flags = ["--set", f"model.student_model_path={model}", "--set", "redis.url=redis://127.0.0.1:9/0", *more]
    # Logging is the process's, and would stay set up for the tests after this one.
    monkeypatch.setattr("hintloop_teacher.__main__.configure_logging", lambda *args: None)
    monkeypatch.setattr(sys, "argv", ["teacher", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_student_that_is_not_there_ends_in_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, tmp_path) == 2
    assert f"teacher: model.student_model_path {str(tmp_path)!r}: config.json cannot" in capsys.readouterr().err


def test_an_engine_that_cannot_teach_ends_in_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def refused(*args: object, **kwargs: object) -> HintloopError:
        raise ProbeError("the engine's scores are shifted")

    monkeypatch.setattr(wiring, "build_deps", refused)
    assert run(monkeypatch, tmp_path) == 2
    assert capsys.readouterr().err.endswith("teacher: the engine's scores are shifted\n")


@pytest.mark.parametrize(
    ("key", "words"),
    [("port", "prm.port {} cannot be listened on: Address already in use"), ("grpc_port", "prm.grpc_port: cannot")],
)
def test_a_port_that_is_taken_ends_in_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as freed:
        ports = {"port": freed.getsockname()[1], "grpc_port": freed.getsockname()[1], key: taken.getsockname()[1]}
        freed.close()
        more = [word for name, port in ports.items() for word in ("--set", f"prm.{name}={port}")]
        assert run(monkeypatch, Path(save_model(tmp_path / "m")), *more) == 2
        assert words.format(ports["port"]) in capsys.readouterr().err


def test_a_teacher_that_would_generate_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, tmp_path, "--set", "opd.teacher_scoring_mode=generate") == 2
    said = capsys.readouterr().err
    assert "opd.teacher_scoring_mode" in said and "set 'forced'" in said
