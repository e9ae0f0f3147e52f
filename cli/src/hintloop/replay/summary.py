"""What a replay found, in figures: each side by itself, and the two against one another. Reads the store once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hintloop_contract.messages import Judgement, Sample
from hintloop_contract.tensors import unpack

from hintloop.replay.results import outcome
from hintloop.replay.spread import Spread
from hintloop.replay.store import Row, Store
from hintloop.replay.until import Until

SCORES = (1, 0, -1, None)
#: Turns that are shown because the sides differ about them.
NUM_EXAMPLES = 20
#: Share of a mean square below which what is left of it when the mean's square is taken away is rounding.
ROUNDING = 1e-12


@dataclass(slots=True)
class SideFigures:
    """One side."""

    name: str
    label: str
    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    """By ``stage:reason``."""
    judged: int = 0
    """Turns of which the judge said something, whether or not they were dropped then."""
    scores: Counter[int | None] = field(default_factory=Counter)
    hints: Counter[str] = field(default_factory=Counter)
    votes: int = 0
    failed_votes: Counter[str] = field(default_factory=Counter)
    split_votes: int = 0
    """Turns whose votes gave different scores."""
    scored_by_votes: int = 0
    """Turns with at least two votes that gave a score."""
    advantages: Spread = field(default_factory=Spread)
    incomparable: int = 0
    """Turns of which no difference can be told: sampled at another temperature, or truncated."""

    @property
    def num_hints(self) -> int:
        """Turns with a hint."""
        return self.hints.total()

    def add(self, row: Row, until: Until) -> None:
        """Take one turn in."""
        self.turns += 1
        self.outcomes[outcome(row, until)] += 1
        if row.reason is not None:
            self.drops[f"{row.stage}:{row.reason}"] += 1
        if row.judgement is not None:
            self._judgement(row.judgement)
        values = advantages_of(row, until)
        if values is not None:
            self.advantages.add(values)
        elif until is Until.TEACHER and row.sample is not None and row.sample.teacher_logprobs is not None:
            self.incomparable += 1

    def _judgement(self, judgement: Judgement) -> None:
        self.judged += 1
        self.scores[judgement.score] += 1
        if judgement.hint is not None:
            self.hints[judgement.hint] += 1
        self.votes += len(judgement.votes)
        self.failed_votes.update(_short(vote.failed) for vote in judgement.votes if vote.failed)
        given = [vote.score for vote in judgement.votes if vote.score is not None]
        if len(given) > 1:
            self.scored_by_votes += 1
            self.split_votes += len(set(given)) > 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "label": self.label,
            "turns": self.turns,
            "outcomes": dict(self.outcomes),
            "dropped": dict(self.drops.most_common()),
            "judged": self.judged,
            "scores": {_score(score): self.scores[score] for score in SCORES if self.scores[score]},
            "hints": {
                "given": self.num_hints,
                "share": _share(self.num_hints, self.judged),
                "different": len(self.hints),
            },
            "votes": {
                "asked": self.votes,
                "failed": dict(self.failed_votes.most_common()),
                "split_share": _share(self.split_votes, self.scored_by_votes),
            },
            "advantages": self.advantages.as_dict(),
            "incomparable": self.incomparable,
        }


@dataclass(slots=True)
class Agreement:
    """Two sides on the same turns."""

    both_judged: int = 0
    matrix: Counter[tuple[int | None, int | None]] = field(default_factory=Counter)
    """Scores of the first and of the second side."""
    hints: Counter[str] = field(default_factory=Counter)
    """`both`, `same` (in words, among both), `only_a`, `only_b`, `neither`."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: list[tuple[Row, Row]] = field(default_factory=list)
    tokens: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(5))
    """Of both sides' values on the same tokens: a, b, a², b², ab."""
    same_sign: int = 0

    def add(self, mine: Row, theirs: Row, until: Until) -> None:
        """Take one turn in."""
        self.outcomes[outcome(mine, until), outcome(theirs, until)] += 1
        if mine.judgement is not None and theirs.judgement is not None:
            self._judgements(mine, theirs, mine.judgement, theirs.judgement)
        a, b = advantages_of(mine, until), advantages_of(theirs, until)
        if a is not None and b is not None and len(a) == len(b):
            self.tokens += len(a)
            self.sums += (a.sum(), b.sum(), (a * a).sum(), (b * b).sum(), (a * b).sum())
            self.same_sign += int((np.sign(a) == np.sign(b)).sum())

    def _judgements(self, mine: Row, theirs: Row, a: Judgement, b: Judgement) -> None:
        self.both_judged += 1
        self.matrix[a.score, b.score] += 1
        kind = {(True, True): "both", (True, False): "only_a", (False, True): "only_b", (False, False): "neither"}
        self.hints[kind[a.hint is not None, b.hint is not None]] += 1
        self.hints["same"] += a.hint is not None and a.hint == b.hint
        if a.score != b.score and len(self.examples) < NUM_EXAMPLES:
            self.examples.append((mine, theirs))

    @property
    def compares_scores(self) -> bool:
        """Whether both sides gave scores at all: a method that learns from hints alone asks no model for one."""
        return any(a is not None for a, _ in self.matrix) and any(b is not None for _, b in self.matrix)

    @property
    def score_agreement(self) -> float | None:
        """Share of turns with the same score; ``None`` where a side gave none at all."""
        if not self.compares_scores:
            return None
        return _share(sum(n for (a, b), n in self.matrix.items() if a == b), self.both_judged)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa of the scores; ``None`` where chance alone explains all, or nothing was judged."""
        total = self.both_judged
        if not total or not self.compares_scores:
            return None
        mine, theirs = Counter[int | None](), Counter[int | None]()
        for (a, b), number in self.matrix.items():
            mine[a] += number
            theirs[b] += number
        chance = sum(mine[score] * theirs[score] for score in SCORES) / total**2
        observed = self.score_agreement or 0.0
        return (observed - chance) / (1 - chance) if chance < 1 else None

    @property
    def correlation(self) -> float | None:
        """Of the two sides' values on the same tokens; ``None`` where a side's are all the same."""
        if self.tokens < 2:
            return None
        a, b, aa, bb, ab = self.sums / self.tokens
        spread_a, spread_b = aa - a * a, bb - b * b
        if spread_a <= ROUNDING * aa or spread_b <= ROUNDING * bb:
            return None
        return float((ab - a * b) / (spread_a * spread_b) ** 0.5)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "both_judged": self.both_judged,
            "score_agreement": self.score_agreement,
            "score_kappa": self.kappa,
            "scores": {f"{_score(a)} / {_score(b)}": number for (a, b), number in sorted(self.matrix.items(), key=str)},
            "hints": dict(self.hints),
            "same_hint_share": _share(self.hints["same"], self.hints["both"]),
            "outcomes": {f"{a} / {b}": number for (a, b), number in self.outcomes.most_common()},
            "tokens": self.tokens,
            "advantage_correlation": self.correlation,
            "advantage_same_sign": _share(self.same_sign, self.tokens),
            "differing": [
                {"turn_id": a.turn_id, "line": a.line, "a": _opinion(a), "b": _opinion(b)}
                for a, b in (self.examples if self.compares_scores else [])
            ],
        }


def advantages_of(row: Row, until: Until) -> Any:
    """``[T]`` of a turn: as the trainer gave them to the loss; without a trainer teacher minus behaviour.

    ``None`` where there are none, or where the engine's log-probabilities are not of temperature 1.
    """
    if until is Until.TRAINER:
        trained = row.trained.advantages if row.trained is not None else None
        return None if trained is None else unpack(trained).astype(np.float64)
    sample = row.sample
    if sample is None or sample.teacher_logprobs is None or not comparable(sample):
        return None
    return unpack(sample.teacher_logprobs).astype(np.float64) - unpack(sample.behaviour_logprobs)


def comparable(sample: Sample) -> bool:
    """Whether the engine's log-probabilities are those of temperature 1 over the whole vocabulary."""
    sampling, space = sample.sampling, sample.behaviour_space
    if space == "raw":
        return True
    at_one = sampling.temperature == 1.0 and not sampling.constrained
    whole = sampling.top_p == 1.0 and not sampling.top_k and not sampling.min_p
    return at_one and (whole or space == "after_temperature")


def summed_up(store: Store, labels: dict[str, str], until: Until) -> tuple[list[SideFigures], Agreement | None]:
    """Every side's figures, and their agreement where there are two."""
    sides = [SideFigures(name, label) for name, label in labels.items()]
    agreement = Agreement() if len(sides) == 2 else None
    for rows in _together(store, list(labels)):
        for side, row in zip(sides, rows, strict=True):
            side.add(row, until)
        if agreement is not None:
            agreement.add(rows[0], rows[1], until)
    return sides, agreement


def _together(store: Store, names: list[str]) -> Iterator[tuple[Row, ...]]:
    """The same turn on every side; each side has every turn of the file, in its order."""
    for rows in itertools.zip_longest(*(store.rows(name) for name in names)):
        assert len({row.turn_id for row in rows if row is not None}) == 1, "a side lacks a turn"
        yield rows


def _opinion(row: Row) -> dict[str, Any]:
    assert row.judgement is not None, "examples are judged turns"
    return {"score": row.judgement.score, "hint": row.judgement.hint}


def _score(score: int | None) -> str:
    return "none" if score is None else f"{score:+d}" if score else "0"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _short(reason: str) -> str:
    """A vote's reason without what it quotes, so that like failures count together."""
    return reason.partition(":")[0][:80]
