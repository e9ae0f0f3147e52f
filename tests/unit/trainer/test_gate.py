"""What the release gate measures and decides, with numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.gate import GateSection
from hintloop_contract.errors import ConfigError
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.measures import Measured, measure, repetition
from hintloop_trainer.gate.messages import Answer
from hintloop_trainer.gate.probes import Probe, read_probes
from hintloop_trainer.gate.verdict import failings, mean_and_error


class Nobody:
    """Answers no probe."""

    async def look(self, candidate: Any) -> list[Answer]:
        raise AssertionError(candidate)

    async def close(self) -> None: ...


def answer(token_ids: list[int], *, ended: bool = True, text: str = "", **fields: float) -> Answer:
    return Answer(token_ids=token_ids, ended=ended, text=text, **{"entropy": 2.0, "base_nll": 1.0, **fields})


def measured(**fields: Any) -> Measured:
    """Eight prompts, all alike unless said otherwise."""
    values = {"answered": 1.0, "length": 20.0, "repetition": 0.0, "entropy": 2.0, "base_nll": 1.0, "score": 1.0}
    given = {name: fields.get(name, value) for name, value in values.items()}
    return Measured(**{name: value if isinstance(value, list) else [value] * 8 for name, value in given.items()})


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ([], 0.0),
        ([1, 2], 0.0),
        ([1, 2, 3, 4, 5], 0.0),
        # 111 five times: four of five stood there before.
        ([1] * 7, 0.8),
        # 123 231 312 123 231: two of five.
        ([1, 2, 3, 1, 2, 3, 1], 0.4),
    ],
)
def test_repetition_is_the_share_of_runs_that_came_before(ids: list[int], share: float) -> None:
    assert repetition(ids) == pytest.approx(share)


def test_an_answer_is_one_that_ends_and_says_something() -> None:
    probes = [Probe((), (1,)) for _ in range(3)]
    found = measure(probes, [answer([5, 6, 2]), answer([2]), answer([5, 6, 7], ended=False)])
    assert found.answered == [1.0, 0.0, 0.0]
    assert found.length == [2.0, 0.0, 3.0]
    assert found.means()["answer_rate"] == pytest.approx(1 / 3)
    assert "score" not in found.means()


def test_the_score_is_over_prompts_that_expect_something() -> None:
    file = [
        Probe((), (1,), read_probes(None)[0].expect),
        Probe((), (1,)),
        Probe((), (1,), read_probes(None)[0].expect),
    ]
    found = measure(file, [answer([5], text="It is paris."), answer([5]), answer([5], text="Lyon")])
    assert found.score[0] == 1.0
    assert math.isnan(found.score[1])
    assert found.means()["score"] == 0.5


def test_mean_and_its_error() -> None:
    # Deviations -1.5, -0.5, 0.5, 1.5: variance 5/3, over four values.
    assert mean_and_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, math.sqrt(5 / 3 / 4)))
    assert mean_and_error([3.0]) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("candidate", "key"),
    [
        ({"answered": [1.0] * 4 + [0.0] * 4}, "answer_rate_drop"),
        ({"length": 5.0}, "length_ratio"),
        ({"length": 60.0}, "length_ratio"),
        ({"repetition": 0.3}, "repetition_rise"),
        ({"entropy": 3.5}, "entropy_change"),
        ({"entropy": 0.5}, "entropy_change"),
        ({"base_nll": 2.0}, "base_nll_rise"),
        ({"score": [1.0] * 3 + [0.0] * 5}, "score_drop"),
    ],
)
def test_each_margin_holds_back_what_is_past_it(candidate: dict[str, Any], key: str) -> None:
    (found,) = failings(measured(**candidate), measured(), GateSection(), against="version 3")
    assert found.key == key
    assert f"gate.{key}" in str(found)
    assert "version 3" in str(found)
    # And nothing else does: without that margin it passes.
    assert (
        failings(measured(**candidate), measured(), GateSection.model_validate({key: None}), against="version 3") == []
    )


@pytest.mark.parametrize(
    "candidate",
    [
        {},
        {"answered": [1.0] * 6 + [0.0] * 2},
        {"length": 11.0},
        {"length": 40.0},
        {"repetition": 0.19},
        {"entropy": 2.9},
        {"base_nll": 1.7},
        {"base_nll": 0.0},
        {"score": [1.0] * 6 + [0.0] * 2},
    ],
)
def test_what_is_within_the_margins_passes(candidate: dict[str, Any]) -> None:
    assert failings(measured(**candidate), measured(), GateSection(), against="version 3") == []


def test_better_answers_are_not_held_back() -> None:
    worse = measured(answered=0.0, repetition=0.9, base_nll=5.0, score=0.0)
    assert failings(measured(), worse, GateSection(), against="version 3") == []


def test_a_difference_within_its_noise_passes_however_large() -> None:
    # Mean +0.875 nats is past the margin of 0.75, but a single prompt makes all of it: the error is 0.875 as well.
    noisy = measured(base_nll=[8.0] + [1.0] * 7)
    assert failings(noisy, measured(), GateSection(), against="version 3") == []
    (found,) = failings(noisy, measured(), GateSection(standard_errors=0.9), against="version 3")
    assert (found.difference, found.standard_error) == pytest.approx((0.875, 0.875))


def test_prompts_are_compared_each_with_itself() -> None:
    # Prompts differ by far more than the two versions do; paired, the difference is clear.
    reference = [float(value) for value in range(8)]
    candidate = [value + 1.0 for value in reference]
    (found,) = failings(measured(base_nll=candidate), measured(base_nll=reference), GateSection(), against="version 3")
    assert (found.difference, found.standard_error) == (1.0, 0.0)


def test_margins_are_wider_against_the_first_weights() -> None:
    section = GateSection(base_factor=3.0)
    drifted = measured(base_nll=3.0)
    assert failings(drifted, measured(), section, against="the first weights", factor=3.0) == []
    (found,) = failings(measured(base_nll=3.3), measured(), section, against="the first weights", factor=3.0)
    assert found.margin == pytest.approx(2.25)
    # A ratio widens as a power: 2 becomes 8.
    assert failings(measured(length=2.0), measured(), section, against="base", factor=3.0) == []
    (found,) = failings(measured(length=1.0), measured(), section, against="base", factor=3.0)
    assert found.key == "length_ratio"


@pytest.mark.parametrize(("base_factor", "keys"), [(1.0, ["base_nll_rise"]), (6.0, [])])
def test_the_first_weights_are_compared_with_margins_of_the_configured_width(
    base_factor: float, keys: list[str], tmp_path: Path
) -> None:
    gate = Gate(GateSection(base_factor=base_factor), [], Nobody(), tmp_path)
    gate.base_is(measured())
    assert [found.key for found in gate.failings(measured(base_nll=3.0))] == keys


def test_the_built_in_probes_are_read() -> None:
    probes = read_probes(None)
    assert len(probes) == 24
    assert all(probe.messages[-1]["role"] == "user" for probe in probes)
    assert sum(bool(probe.expect) for probe in probes) == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 4 is no JSON"),
        ("[]", "line 4 is no object"),
        ('{"prompt": "hi"}', "line 4: 'prompt' is none of"),
        ('{"expect": "x"}', "line 4: give messages, or prompt_ids"),
        ('{"messages": [{"role": "user", "content": "a"}], "prompt_ids": [1]}', "line 4: give messages, or prompt_ids"),
        ('{"prompt_ids": [1, -2]}', "line 4: prompt_ids must be"),
        ('{"prompt_ids": []}', "line 4: prompt_ids must be"),
        ('{"messages": []}', "line 4: messages must be a list"),
        ('{"messages": [{"role": "user", "text": "a"}]}', "line 4: .* is no message"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "line 4: the last message is of the role 'system'"),
        ('{"messages": [{"role": "user", "content": "a"}], "expect": "("}', "line 4: expect '\\(' is no regular"),
        ('{"messages": [{"role": "user", "content": "a"}], "expect": []}', "line 4: expect \\[\\] must be"),
        ('{"messages": [{"role": "user", "content": "a"}], "expect": 5}', "line 4: expect 5 must be"),
    ],
)
def test_a_wrong_probe_file_is_refused_with_the_line(tmp_path: Path, line: str, message: str) -> None:
    good = '{"messages": [{"role": "user", "content": "a"}]}\n'
    (tmp_path / "probes.jsonl").write_text(good * 3 + line)
    with pytest.raises(ConfigError, match=message):
        read_probes(tmp_path / "probes.jsonl")


def test_too_few_probes_and_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text('{"prompt_ids": [1, 2]}\n\n')
    with pytest.raises(ConfigError, match="holds 1 prompts; give at least 4"):
        read_probes(tmp_path / "probes.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_probes(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("expect", "text", "met"),
    [
        ("blue|grey", "It is BLUE.", True),
        ("^blue", "It is blue.", False),
        (["red", "green"], "Green and red", True),
        (["red", "green"], "greenish and red", False),
        (["C++"], "I like c++.", True),
    ],
)
def test_what_an_answer_has_to_hold(tmp_path: Path, expect: Any, text: str, met: bool) -> None:
    import json

    line = json.dumps({"messages": [{"role": "user", "content": "a"}], "expect": expect})
    (tmp_path / "probes.jsonl").write_text("\n".join([line] * 4))
    assert read_probes(tmp_path / "probes.jsonl")[0].is_met(text) is met
