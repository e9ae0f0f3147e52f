"""What the figures of steps show: advantages that are nothing, of one sign or too large; drift; students that narrow.

Advantages are those of the newest :data:`RECENT` steps where their figures are known, else of the run so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hintloop_contract.config.learning import SMALLEST_RATE
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.diagnosis.figures import Expected, Recognised, Seen

#: Steps below which nothing is said of a trend, and from which the absence of one is worth a word.
ENOUGH_STEPS, MANY_STEPS = 10, 30
#: Steps whose figures say how it is now, and first steps with which they are compared.
RECENT = 5
#: |A| below this, in mean and deviation, is rounding (float32 engines of equal weights differ by some 1e-6).
NOTHING = 1e-4
#: Deviation of per-token advantages past which no hint explains them, nats: a hint makes tokens some e-fold likelier;
#: ten nats is a factor of 22,000 on the average token.
EXPLODED = 10.0
#: Share of one sign past which there is no other.
ALL = 0.999
#: Mean absolute difference of engine and trainer per token, nats, by dtype of the published weights.
DRIFT = {"float32": 0.01, "bfloat16": 0.1}
#: Entropy that is left of the first steps' when an alarm is due, and below which it is low in any case, nats.
ENTROPY_LEFT, ENTROPY_LOW = 0.5, 0.3
#: Length that is left of the first steps' when an alarm is due, and above which answers are not short, tokens.
LENGTH_LEFT, LENGTH_SHORT = 0.25, 8.0


def advantages(seen: Seen, expected: Expected) -> Recognised | None:
    """All zero, too large, or of one sign: the first that holds."""
    found = _advantages(seen)
    if found is None:
        return None
    mean, std, positive, negative = found
    evidence: dict[str, float | str] = {
        "mean": mean,
        "std": std,
        "share_positive": positive,
        "share_negative": negative,
        "step": seen.step,
    }
    said = (
        f"advantages: mean {mean:+.3g}, deviation {std:.3g}, {positive:.0%} above and {negative:.0%} below 0, "
        f"step {seen.step}"
    )
    if abs(mean) < NOTHING and std < NOTHING:
        return Recognised(Cause.ADVANTAGES_ALL_ZERO, said, evidence, grave=True)
    if std > EXPLODED:
        return Recognised(Cause.ADVANTAGES_EXPLODE, said, evidence, grave=True)
    if max(positive, negative) >= ALL:
        return Recognised(Cause.ADVANTAGES_ONE_SIGN, said, evidence)
    return None


def _advantages(seen: Seen) -> tuple[float, float, float, float] | None:
    """Mean, deviation, shares above and below 0; ``None`` before any step, or under a loss that has none."""
    names = ("mean", "std", "share_positive", "share_negative")
    recent = [step for step in seen.steps if "advantage_mean" in step and "advantage_std" in step][-RECENT:]
    if recent:
        mean, std, positive, negative = (fmean(step.get(f"advantage_{name}", 0.0) for step in recent) for name in names)
        return mean, std, positive, negative
    found = [seen.figure(f"run_advantage_{name}") for name in names]
    if not seen.step or found[0] is None or found[1] is None:
        return None
    return found[0], found[1], found[2] or 0.0, found[3] or 0.0


def drift(seen: Seen, expected: Expected) -> Recognised | None:
    """Engine and trainer disagree about tokens of the same weights.

    Only steps all of whose answers were made by the weights that were trained say so: earlier ones rightly differ.
    """
    name, allowed = "engine_difference_abs_mean", DRIFT[expected.dtype]
    newest = {key: value for key in (name, "staleness_max") if (value := seen.figure(key)) is not None}
    recent = [*seen.steps[-RECENT:]] or [newest]
    fresh = [step[name] for step in recent if name in step and not step.get("staleness_max")]
    if not fresh or fmean(fresh) <= allowed:
        return None
    found = fmean(fresh)
    said = f"engine and trainer differ by {found:.4f} nats a token in the mean of {len(fresh)} step(s)"
    said += f"; {allowed:g} is allowed"
    return Recognised(Cause.ENGINE_DRIFT, said, {name: found, "allowed": allowed})


def nothing_moves(seen: Seen, expected: Expected) -> Recognised | None:
    """Steps without effect: nothing has a gradient, or the learning rate is none."""
    if not seen.step:
        return None
    norm, tokens = seen.figure("grad_norm"), seen.figure("tokens_trained")
    found = _advantages(seen)
    advised = found is None or abs(found[0]) >= NOTHING or found[1] >= NOTHING
    if tokens == 0 or (norm == 0.0 and advised):
        said = f"step {seen.step}: {tokens or 0:.0f} tokens trained, gradient norm {norm or 0.0:g}"
        return Recognised(Cause.LOSS_MASK_ZERO, said, {"grad_norm": norm or 0.0, "tokens_trained": tokens or 0.0}, True)
    rate = seen.figure("effective_learning_rate")
    if rate is not None and rate < SMALLEST_RATE:
        said = f"step {seen.step} was made with the learning rate {rate:g}"
        return Recognised(Cause.LEARNING_RATE_ZERO, said, {"effective_learning_rate": rate}, grave=True)
    return _same_weights(seen)


def _same_weights(seen: Seen) -> Recognised | None:
    """Versions of different steps whose files are equal."""
    (before, one), (after, other) = seen.hashes[-2:] if len(seen.hashes) > 1 else ((0, ""), (0, " "))
    if one and one == other and before != after:
        said = f"the weights of steps {before} and {after} are the same to the last bit"
        return Recognised(Cause.LEARNING_RATE_ZERO, said, {"weights_hash": one}, grave=True)
    return None


def entropy(seen: Seen, expected: Expected) -> Recognised | None:
    """The student's entropy fell to half of the first steps', and is low."""
    before, now = first_and_last(seen.series("entropy"))
    if before is None or now is None or now > min(ENTROPY_LEFT * before, ENTROPY_LOW):
        return None
    said = f"entropy {now:.3f} nats a token, {before:.3f} in the first steps"
    return Recognised(Cause.ENTROPY_FALLS, said, {"first": before, "now": now})


def length(seen: Seen, expected: Expected) -> Recognised | None:
    """Answers fell to a quarter of the first steps' length, and are short."""
    before, now = first_and_last(seen.series("response_length"))
    if before is None or now is None or now > min(LENGTH_LEFT * before, LENGTH_SHORT):
        return None
    said = f"answers have {now:.1f} tokens in the mean, {before:.1f} in the first steps"
    return Recognised(Cause.LENGTH_COLLAPSES, said, {"first": before, "now": now})


def first_and_last(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Means of the first and the last :data:`RECENT` values; nothing below :data:`ENOUGH_STEPS`."""
    if len(values) < ENOUGH_STEPS:
        return None, None
    return fmean(values[:RECENT]), fmean(values[-RECENT:])


@dataclass(frozen=True, slots=True)
class Movement:
    """What the method is to move: ``name`` for people, means of the first and last third of the steps, and the
    standard error of their difference. ``gained`` is positive in the wanted direction."""

    name: str
    num_steps: int
    before: float
    now: float
    error: float
    gained: float

    @property
    def improves(self) -> bool:
        """Beyond one standard error."""
        return self.gained > self.error


def movement(seen: Seen, expected: Expected) -> Movement | None:
    """How far the method's own measure moved; ``None`` below :data:`ENOUGH_STEPS` steps.

    Under OPD teacher minus student goes towards 0 (read by its magnitude); under Top-K the KL, which is the loss, goes
    down; a score goes up.
    """
    name, figure, sign = measured(expected)
    values = seen.series(figure) or (seen.series("loss") if figure == "loss_policy" else [])
    if len(values) < ENOUGH_STEPS:
        return None
    if figure == "teacher_minus_student_mean":
        values = [abs(value) for value in values]
    third = len(values) // 3
    before, now = values[:third], values[-third:]
    error = (stdev(before) ** 2 / third + stdev(now) ** 2 / third) ** 0.5
    gained = sign * (fmean(now) - fmean(before))
    return Movement(name, len(values), fmean(before), fmean(now), error, gained)


def measured(expected: Expected) -> tuple[str, str, int]:
    """What a method moves: its name, the trainer's figure, and +1 where more is better."""
    needs = expected.needs
    if needs.score:
        return "mean score", "score_mean", 1
    if needs.top_k or (needs.by_trainer and not needs.own_teacher):
        return "KL to the teacher's candidates", "loss_policy", -1
    return "|teacher - student| in the mean", "teacher_minus_student_mean", -1


def no_improvement(seen: Seen, expected: Expected) -> Recognised | None:
    """Many steps, and the method's own measure went nowhere or the wrong way."""
    moved = movement(seen, expected)
    if moved is None or moved.num_steps < MANY_STEPS or moved.gained > -moved.error:
        return None
    said = (
        f"{moved.name}: {moved.before:.4f} in the first third of {moved.num_steps} steps, {moved.now:.4f} in the last"
    )
    evidence: dict[str, float | str] = {"first": moved.before, "now": moved.now, "standard_error": moved.error}
    return Recognised(Cause.NO_IMPROVEMENT, said, evidence)
