"""What is measured of probe answers, prompt by prompt. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hintloop_trainer.gate.messages import Answer
from hintloop_trainer.gate.probes import Probe

#: Length of the runs of tokens that count as repeated when they come again.
NGRAM = 3


def repetition(token_ids: Sequence[int]) -> float:
    """Share of an answer's 3-grams that stood in it before; 0 when it has none."""
    grams = [tuple(token_ids[start : start + NGRAM]) for start in range(len(token_ids) - NGRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One version's answers in numbers: a list of one value a prompt for each measure, in the order of the probes."""

    answered: list[float]
    """1 where an answer that is not empty ended by itself, else 0."""
    length: list[float]
    """Tokens, the end not counted."""
    repetition: list[float]
    """Share of repeated 3-grams."""
    entropy: list[float]
    """Nats per token."""
    base_nll: list[float]
    """Negative log-likelihood under the student's first weights, nats per token."""
    score: list[float]
    """1 where the answer holds what its prompt expects, else 0; not a number where nothing is expected."""

    def means(self) -> dict[str, float]:
        """Mean of every measure over the prompts that have it, by its name."""
        named = {
            "answer_rate": self.answered,
            "length": self.length,
            "repetition": self.repetition,
            "entropy": self.entropy,
            "base_nll": self.base_nll,
            "score": [value for value in self.score if not math.isnan(value)],
        }
        return {name: math.fsum(values) / len(values) for name, values in named.items() if values}


def measure(probes: Sequence[Probe], answers: Sequence[Answer]) -> Measured:
    """Measure the answers to ``probes``, which are in the same order.

    Raises:
        ValueError: their numbers differ.
    """
    pairs = list(zip(probes, answers, strict=True))
    met = [probe.is_met(answer.text) for probe, answer in pairs]
    return Measured(
        answered=[float(answer.ended and answer.num_tokens > 0) for _, answer in pairs],
        length=[float(answer.num_tokens) for _, answer in pairs],
        repetition=[repetition(answer.token_ids) for _, answer in pairs],
        entropy=[answer.entropy for _, answer in pairs],
        base_nll=[answer.base_nll for _, answer in pairs],
        score=[math.nan if found is None else float(found) for found in met],
    )
