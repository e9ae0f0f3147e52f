"""Every fault is named first, in both of its variants; on the healthy stack nothing is raised."""

from __future__ import annotations

from itertools import product

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.deployment import Deployment
from tests.faults.fault import VARIANTS, Fault, Variant

from .asking import ask, note

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

#: The cause that is to be named first.
NAMED = {
    "`generate` scoring": "generated_scoring",
    "hint extraction off": "hints_switched_off",
    "`kl_coef` set in OPD": "kl_in_opd",
    "custom loss path wrong": "custom_loss_missing",
    "`compute_loss` missing": "compute_loss_missing",
    "memory estimate exceeded": "memory_short",
    "judge key wrong": "judge_key_wrong",
    "judge model missing": "judge_model_missing",
    "empty hints": "no_hints",
    "platitude hints": "hints_not_concrete",
    "`hint_max_tokens` cuts every vote": "votes_cut",
    "`drop_sample_without_hint = false` with failing hints": "unhinted_turns_trained",
    "PRM without log-probabilities": "prm_gives_no_logprobs",
    "K above the limit": "top_k_above_limit",
    "tokenizer differs": "tokenizer_differs",
    "rendered prompt differs from the captured one": "rendering_differs",
    "temperature mismatch": "temperature_differs",
    "off-by-one teacher": "prm_shifted",
    "a teacher that cannot follow its hints": "teacher_ignores_hints",
    "teacher context cut": "teacher_context_short",
    "agent timeouts as next state": "timeouts_as_next_state",
    "session timeout too short": "session_timeout_short",
    "no next states": "turns_not_continued",
    "all turns side calls": "all_side_calls",
    "learning rate 0": "learning_rate_zero",
    "loss mask all zero": "loss_mask_zero",
    "staleness bound 0 with slow training": "samples_stale",
    "Redis bound reached": "redis_full",
    "weights never published": "weights_never_published",
    "one engine replica stale": "engine_behind",
    "cache not flushed": "cache_stale",
    "engine restarted with base weights": "engine_at_base",
}
#: What every run of the tests looks at: a third of the faults, each in one variant.
QUICK = {
    ("`generate` scoring", "primary"),
    ("`kl_coef` set in OPD", "primary"),
    ("learning rate 0", "primary"),
    ("judge key wrong", "primary"),
    ("platitude hints", "second"),
    ("PRM without log-probabilities", "primary"),
    ("off-by-one teacher", "second"),
    ("a teacher that cannot follow its hints", "primary"),
    ("all turns side calls", "primary"),
    ("one engine replica stale", "primary"),
    ("engine restarted with base weights", "primary"),
}


def cases() -> list[object]:
    """Every fault in every variant; those that are not quick belong to the long series."""
    ordered = sorted(product(FAULTS, VARIANTS), key=lambda case: case[0].trains)
    return [
        pytest.param(
            fault,
            variant,
            id=f"{fault.name}-{variant}",
            marks=() if (fault.name, variant) in QUICK else pytest.mark.slow,
        )
        for fault, variant in ordered
    ]


def test_the_catalogue_is_the_matrix() -> None:
    assert [fault.name for fault in FAULTS] == list(NAMED)
    assert len(FAULTS) >= 25
    assert len({name for name, _ in QUICK}) * 3 >= len(FAULTS) - 2
    assert {name for name, _ in QUICK} <= set(NAMED)


def healthy(stack: Deployment, name: str) -> None:
    said = ask(stack, name)
    note({"healthy": name, "raised": said.causes, "code": said.code, "seconds": round(said.seconds, 1)})
    assert said.first is None, said
    assert not said.causes, said
    assert said.code == 0, said


def test_nothing_is_raised_before(stack: Deployment) -> None:
    healthy(stack, "healthy before")


@pytest.mark.slow
def test_nothing_is_raised_once_the_signal_can_be_judged(stack: Deployment) -> None:
    stack.train(max(0, 12 - stack.step()))
    healthy(stack, "healthy after twelve steps")


@pytest.mark.parametrize(("fault", "variant"), cases())
def test_a_fault_is_named_first(stack: Deployment, fault: Fault, variant: Variant) -> None:
    with fault.injector(variant)(stack):
        said = ask(stack, f"{fault.name} {variant}")
    note(
        {
            "fault": fault.name,
            "variant": variant,
            "wanted": NAMED[fault.name],
            "named": said.first,
            "causes": said.causes,
            "seconds": round(said.seconds, 1),
        }
    )
    assert said.first == NAMED[fault.name], said


def test_nothing_is_raised_after(stack: Deployment) -> None:
    healthy(stack, "healthy after")
