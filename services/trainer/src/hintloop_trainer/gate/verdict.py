"""Whether a candidate may be released: its measures against those of other weights, past margins and noise. Pure.

A small probe set is noisy, so a difference must be beyond its margin and beyond some standard errors of itself. Both
versions answer the same prompts with the same random numbers; differences are taken prompt by prompt (paired), which
leaves out what makes one prompt's answer longer than another's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hintloop_contract.config.gate import GateSection

from hintloop_trainer.gate.measures import Measured


@dataclass(frozen=True, slots=True)
class Rule:
    """One measure's margin. ``sign``: +1 holds back what rises past it, -1 what falls, 0 either."""

    measure: str
    key: str
    """Its key in the section `gate`."""
    sign: int
    margin: float
    differences: list[float]
    """Candidate minus reference by prompt, in the unit of the margin."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A margin that a candidate is past."""

    measure: str
    key: str
    against: str
    """What it was compared with, such as ``version 5``."""
    candidate: float
    reference: float
    difference: float
    """Mean over the prompts, in the unit of the margin (length: of logarithms)."""
    standard_error: float
    margin: float

    def __str__(self) -> str:
        return (
            f"{self.measure} {self.candidate:.3f} against {self.reference:.3f} of {self.against} "
            f"(difference {self.difference:+.3f} ± {self.standard_error:.3f}, "
            f"margin {self.margin:.3f}: gate.{self.key})"
        )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error ``s / sqrt(n)`` with the sample's deviation ``s``; 0 for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def failings(
    candidate: Measured, reference: Measured, section: GateSection, *, against: str, factor: float = 1.0
) -> list[Failing]:
    """Every margin, ``factor`` times as wide as configured, that ``candidate`` is past."""
    found = []
    ours, theirs = candidate.means(), reference.means()
    for rule in _rules(candidate, reference, section):
        margin = rule.margin * factor
        difference, error = mean_and_error(rule.differences)
        past = abs(difference) if rule.sign == 0 else rule.sign * difference
        # Weights that give no numbers at all must not slip through a comparison.
        if past <= margin or past <= section.standard_errors * error:
            continue
        found.append(
            Failing(
                measure=rule.measure,
                key=rule.key,
                against=against,
                candidate=ours[rule.measure],
                reference=theirs[rule.measure],
                difference=difference,
                standard_error=error,
                margin=margin,
            )
        )
    return found


def _rules(candidate: Measured, reference: Measured, section: GateSection) -> list[Rule]:
    """The rules in force; one without a margin, or without a prompt to compare by, is not."""
    ratio = section.length_ratio
    table: list[tuple[str, str, int, float | None, list[float], list[float]]] = [
        ("answer_rate", "answer_rate_drop", -1, section.answer_rate_drop, candidate.answered, reference.answered),
        (
            "length",
            "length_ratio",
            0,
            None if ratio is None else math.log(ratio),
            [math.log1p(length) for length in candidate.length],
            [math.log1p(length) for length in reference.length],
        ),
        ("repetition", "repetition_rise", 1, section.repetition_rise, candidate.repetition, reference.repetition),
        ("entropy", "entropy_change", 0, section.entropy_change, candidate.entropy, reference.entropy),
        ("base_nll", "base_nll_rise", 1, section.base_nll_rise, candidate.base_nll, reference.base_nll),
        ("score", "score_drop", -1, section.score_drop, candidate.score, reference.score),
    ]
    rules = []
    for measure, key, sign, margin, ours, theirs in table:
        pairs = zip(ours, theirs, strict=True)
        differences = [one - other for one, other in pairs if not (measure == "score" and math.isnan(one))]
        if margin is not None and differences:
            rules.append(Rule(measure, key, sign, margin, differences))
    return rules
