"""What the demo found, as `report.json` and as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hintloop.demo.advantages import Advantages
from hintloop.demo.options import DemoOptions
from hintloop.demo.preference import Answer, Rates, is_joint, is_satisfied, measure
from hintloop.demo.user import Ledger
from hintloop.funnel import Snapshot

#: Drops that mean: the ids, log-probabilities and usage of a captured answer disagree.
MISMATCHES = ("count_mismatch", "ids_missing", "logprob_missing")
NUM_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything a report is made from. Times are epoch seconds."""

    options: DemoOptions
    snapshot: Snapshot
    steps: int
    version_before: int
    version_after: int
    advantages: Advantages
    before: Sequence[Answer]
    after: Sequence[Answer]
    ledger: Ledger
    greedy_mismatches: Sequence[str]
    ready: float
    ended: float


def by_reason(drops: dict[str, int]) -> dict[str, int]:
    """Drops by reason alone, over all stages."""
    reasons: dict[str, int] = {}
    for place, number in drops.items():
        reason = place.partition(":")[2]
        reasons[reason] = reasons.get(reason, 0) + number
    return reasons


def _rates(rates: Rates) -> dict[str, Any]:
    return {
        "satisfied": rates.satisfied,
        "joint": rates.joint,
        "n": rates.n,
        "satisfied_ci": list(rates.satisfied_ci),
        "joint_ci": list(rates.joint_ci),
    }


def report(findings: Findings) -> dict[str, Any]:
    """The report's content."""
    steps, dropped = findings.snapshot.steps, by_reason(findings.snapshot.drops)
    mismatches = sum(dropped.get(reason, 0) for reason in MISMATCHES)
    return {
        **{step: steps.get(step, 0) for step in ("captured", "linked", "judged", "hinted", "scored", "trained")},
        "dropped": dropped,
        "steps": findings.steps,
        "method": findings.options.method,
        "engine": findings.options.engine,
        "policy_version_before": findings.version_before,
        "policy_version_after": findings.version_after,
        "advantage": findings.advantages.as_dict(),
        "preference_before": _rates(measure(findings.before)),
        "preference_after": _rates(measure(findings.after)),
        "requests": findings.ledger.requests,
        "refused_requests": findings.ledger.refused,
        "token_mismatches": mismatches + len(findings.greedy_mismatches),
        "seconds": {
            "setup": round(findings.ready - findings.options.started, 1),
            "run": round(findings.ended - findings.ready, 1),
        },
    }


def rounds(answers: Sequence[Sequence[Answer]]) -> list[dict[str, Any]]:
    """Shares of the training answers, by round: what the model said before each step."""
    return [_rates(measure(of_round)) for of_round in answers]


def write(path: Path, content: Any) -> None:
    """Write the report, or another of the demo's files, in one piece."""
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    aside.replace(path)


def _mark(answer: Answer) -> str:
    if is_joint(answer):
        return "satisfied, on topic"
    return "satisfied, off topic" if is_satisfied(answer) else "not satisfied"


def examples(before: Sequence[Answer], after: Sequence[Answer]) -> Table:
    """Some prompts with the answer before and after."""
    later = {answer.prompt: answer for answer in after}
    table = Table(title="held-out questions, no hint", title_justify="left", show_lines=True)
    for column in ("question", "before", "after"):
        table.add_column(column, overflow="fold", ratio=1)
    shown = [answer for answer in before if answer.prompt in later][:NUM_EXAMPLES]
    for answer in shown:
        now = later[answer.prompt]
        table.add_row(
            Text(answer.prompt),
            Text(f"{answer.text.strip()}\n[{_mark(answer)}]"),
            Text(f"{now.text.strip()}\n[{_mark(now)}]"),
        )
    return table


def _share(rate: float, interval: Sequence[float]) -> str:
    return f"{rate:.0%} [{interval[0]:.0%}, {interval[1]:.0%}]"


def summary(content: dict[str, Any]) -> Table:
    """The report's figures."""
    table = Table(title="result, with 95 % intervals", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("", "before", "after"):
        table.add_column(column)
    before, after = content["preference_before"], content["preference_after"]
    for key, label in (("satisfied", "satisfied"), ("joint", "satisfied and on topic")):
        ci = f"{key}_ci"
        table.add_row(f"{label}, n = {after['n']}", _share(before[key], before[ci]), _share(after[key], after[ci]))
    table.add_row("policy version", str(content["policy_version_before"]), str(content["policy_version_after"]))
    advantage = content["advantage"]
    table.add_row("optimizer steps", "", str(content["steps"]))
    table.add_row("trained answers", "", str(content["trained"]))
    table.add_row("advantage, mean ± std", "", f"{advantage['mean']:+.3f} ± {advantage['std']:.3f}")
    signs = f"{advantage['share_positive']:.0%} up, {advantage['share_negative']:.0%} down"
    table.add_row("tokens pushed", "", signs)
    table.add_row("requests (refused)", "", f"{content['requests']} ({content['refused_requests']})")
    table.add_row("token mismatches", "", str(content["token_mismatches"]))
    seconds = content["seconds"]
    table.add_row("seconds (set-up + run)", "", f"{seconds['setup']:.0f} + {seconds['run']:.0f}")
    return table


def render(findings: Findings, content: dict[str, Any]) -> RenderableType:
    """Examples and figures, for a terminal."""
    return Group(examples(findings.before, findings.after), "", summary(content))
