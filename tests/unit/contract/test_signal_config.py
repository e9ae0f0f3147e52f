"""Keys of the teacher's gRPC address and of who the teacher is; what they ask of the services."""

from __future__ import annotations

from typing import Any

import pytest
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.config.schema import Config
from pydantic import ValidationError

TOPK = {"advantage": {"estimator": "grpo", "custom_loss_function_path": "topk_reverse_kl.py"}}


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("prm", "target"),
    [
        ({}, "127.0.0.1:18011"),
        ({"port": 9000}, "127.0.0.1:9001"),
        ({"port": 9000, "grpc_port": 7}, "127.0.0.1:7"),
        ({"host": "0.0.0.0", "grpc_port": 7}, "127.0.0.1:7"),
        ({"host": "teacher", "grpc_port": 7}, "teacher:7"),
        ({"host": "::1", "grpc_port": 7}, "[::1]:7"),
        ({"grpc_address": "[::1]:7"}, "[::1]:7"),
        ({"grpc_port": 7, "grpc_address": "prm.example:443"}, "prm.example:443"),
    ],
)
def test_where_grpc_is_reached(prm: dict[str, Any], target: str) -> None:
    assert config(prm=prm).prm.grpc_target == target


@pytest.mark.parametrize(
    ("prm", "words"),
    [
        ({"grpc_address": "http://prm:443"}, "write it as host:port"),
        ({"grpc_address": "prm"}, "write it as host:port"),
        ({"grpc_address": "::1:7"}, r"\[IPv6\]:port"),
        ({"teacher_weights": "ema"}, 'set teacher_source = "trainer"'),
        ({"teacher_source": "trainer", "ema_decay": 0.9}, "ema_decay 0.9 has no effect"),
        ({"teacher_source": "trainer", "teacher_weights": "ema", "ema_decay": 1.0}, "less than 1"),
    ],
)
def test_what_cannot_have_an_effect_is_refused(prm: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(prm=prm)


def test_who_scores() -> None:
    ours = {"teacher_source": "trainer"}
    assert not signal_needs(config()).by_trainer
    assert signal_needs(config()).prm_engine
    own = signal_needs(config(prm=ours))
    assert (own.hint, own.by_trainer, own.prm_engine) == (True, True, False)
    assert not signal_needs(config(advantage={"estimator": "grpo"}, prm=ours)).by_trainer
    combined = signal_needs(config(advantage={"estimator": "combine"}, prm=ours))
    assert (combined.either, combined.by_trainer) == (True, True)


def test_candidates_are_the_teachers_or_the_students() -> None:
    theirs = signal_needs(config(**TOPK))
    assert (theirs.top_k, theirs.by_trainer) == (64, False)
    students = signal_needs(config(**TOPK, topk_opd={"use_teacher_topk": False}))
    assert (students.top_k, students.by_trainer, students.prm_engine) == (0, True, True)
    own = signal_needs(config(**TOPK, prm={"teacher_source": "trainer"}))
    assert (own.top_k, own.by_trainer, own.prm_engine) == (64, True, False)
