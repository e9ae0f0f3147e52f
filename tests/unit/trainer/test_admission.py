"""Which samples may be trained, under the configuration of now and not of when they were made."""

from __future__ import annotations

from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import DropReason
from hintloop_contract.tensors import pack
from hintloop_trainer.admission import Admission
from hintloop_trainer.lineage import Lineage, Released

from .conftest import make_sample

LINEAGE = Lineage([Released(1, 0), Released(2, 1)])
OPEN: dict[str, Any] = {"teacher_logprobs": None, "hinted_prompt_ids": pack([1, 2], "int32")}
BARE: dict[str, Any] = {"teacher_logprobs": None}
OURS = {"prm": {"teacher_source": "trainer"}}
TOPK = frozenset({"teacher_topk"})


@pytest.mark.parametrize(
    ("sections", "requires", "fields", "expected"),
    [
        ({}, None, {}, None),
        (OURS, None, OPEN, None),
        # Rendered for a trainer that was the teacher, and is not any more.
        ({}, None, OPEN, DropReason.TEACHER_MISSING),
        ({}, None, {**BARE, "hint": None}, DropReason.NO_HINT),
        ({"advantage": {"estimator": "combine"}}, None, {**OPEN, "score": 1}, None),
        ({"advantage": {"estimator": "combine"}}, None, {**OPEN, "score": 0}, DropReason.NEUTRAL),
        ({"advantage": {"estimator": "combine"}, **OURS}, None, {**OPEN, "score": None}, None),
        ({"advantage": {"estimator": "grpo"}}, None, {**OPEN, "score": None}, DropReason.NO_SIGNAL),
        ({"topk_opd": {"use_teacher_topk": False}}, TOPK, OPEN, None),
        (OURS, TOPK, OPEN, None),
        ({}, TOPK, OPEN, DropReason.TEACHER_MISSING),
        # Scored for a method without candidates.
        ({}, TOPK, {}, DropReason.TEACHER_MISSING),
        (OURS, TOPK, {"hinted_prompt_ids": pack([1, 2], "int32")}, DropReason.TEACHER_MISSING),
        ({}, frozenset({"score"}), {**BARE, "score": 0}, None),
    ],
)
def test_the_signal_has_to_be_there_or_to_be_filled_in(
    sections: dict[str, Any], requires: frozenset[str] | None, fields: dict[str, Any], expected: DropReason | None
) -> None:
    refusal = Admission(Config.model_validate(sections), requires).refusal(make_sample(**fields), LINEAGE)
    assert (None if refusal is None else refusal.reason) == expected
