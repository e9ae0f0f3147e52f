from __future__ import annotations

from pathlib import Path

import pytest
from hintloop_trainer.errors import LossError
from hintloop_trainer.losses import topk_reverse_kl
from hintloop_trainer.losses.loading import SIGNATURE, load_loss

GOOD = """
REQUIRES = {"teacher_logprobs"}

def compute_loss(inputs):
    return inputs
"""


def test_no_path_is_the_policy_loss() -> None:
    loss = load_loss(None, [])
    assert not loss.custom
    assert not loss.requires


def test_the_usual_topk_path_is_the_built_in_loss(tmp_path: Path) -> None:
    loss = load_loss("openclaw_opd/losses/topk_reverse_kl.py", [tmp_path])
    assert loss.compute is topk_reverse_kl.compute_loss
    assert loss.requires == {"teacher_topk"}
    assert loss.custom


def test_a_file_beside_the_configuration_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, working = tmp_path / "config", tmp_path / "cwd"
    for directory in (beside, working):
        (directory / "losses").mkdir(parents=True)
        (directory / "losses" / "topk_reverse_kl.py").write_text(GOOD)
    monkeypatch.chdir(working)
    assert load_loss("losses/topk_reverse_kl.py", [beside]).source.startswith(str(beside))
    assert load_loss("losses/topk_reverse_kl.py", [tmp_path]).source.startswith(str(working))
    assert load_loss("losses/topk_reverse_kl.py", [beside]).requires == {"teacher_logprobs"}


def test_a_missing_file_names_every_place_and_the_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LossError) as caught:
        load_loss("losses/mine.py", [tmp_path / "config"])
    message = str(caught.value)
    assert str(tmp_path / "config" / "losses" / "mine.py") in message
    assert str(tmp_path / "losses" / "mine.py") in message
    assert SIGNATURE in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("REQUIRES = {'score'}\n", "defines no compute_loss"),
        ("REQUIRES = {'score'}\ndef compute_loss(a, b): ...\n", r"compute_loss\(a, b\)"),
        ("REQUIRES = {'score'}\ndef compute_loss(): ...\n", r"compute_loss\(\)"),
        ("REQUIRES = {'score'}\ndef compute_loss(*, inputs): ...\n", "expected"),
        ("def compute_loss(inputs): ...\n", "REQUIRES"),
        ("REQUIRES = {'reward'}\ndef compute_loss(inputs): ...\n", "REQUIRES"),
        ("REQUIRES = 'score'\ndef compute_loss(inputs): ...\n", "REQUIRES"),
        ("import no_such_module_here\n", "no_such_module_here"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("REQUIRES = {'score'}\ncompute_loss = max\n", "no signature found"),
        ("REQUIRES = [['score']]\ndef compute_loss(inputs): ...\n", "REQUIRES"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_expected(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(LossError, match=message):
        load_loss("mine.py", [tmp_path])
