"""`hintloop replay check`: whether a file can be run, and what of it can be trained."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from hintloop.replay.lines import Checked, checked
from hintloop.terminal import harmless

#: What the reasons mean for someone who has a file in hand.
MEANING = {
    "capture:ids_missing": "no token ids were recorded: judged alone",
    "capture:logprob_missing": "log-probabilities of the answer are missing: judged alone",
    "capture:empty": "the answer has no token",
    "link:no_next_state": "nothing followed the answer: neither judged nor trained",
    "link:aborted": "the answer was cut off: neither judged nor trained",
}


def run_check(path: Path, *, as_json: bool) -> None:
    """Print what ``path`` holds and what is wrong with it; exit code 1 when something is.

    Raises:
        CommandError: it cannot be read.
    """
    found = checked(path)
    typer.echo(json.dumps(_document(found), indent=2) if as_json else harmless(_text(found)))
    if found.num_problems:
        raise typer.Exit(1)


def _document(found: Checked) -> dict[str, object]:
    return {
        "turns": found.turns,
        "sessions": found.sessions,
        "trainable": found.trainable,
        "with_judgement": found.judged,
        "not_trainable": dict(found.lacks.most_common()),
        "sources": dict(found.sources),
        "sha256": found.sha256,
        "num_problems": found.num_problems,
        "problems": [{"line": p.line, "field": p.field, "message": p.message, "fix": p.fix} for p in found.problems],
    }


def _text(found: Checked) -> str:
    lines = [f"{found.path}: {found.turns} turns of {found.sessions} sessions, {found.trainable} can be trained"]
    if found.judged:
        lines.append(f"  {found.judged} carry the judgement they had when they were recorded")
    for reason, number in found.lacks.most_common():
        lines.append(f"  {number} × {reason}: {MEANING.get(reason, 'not trained')}")
    lines += [f"  {problem}" for problem in found.problems]
    hidden = found.num_problems - len(found.problems)
    if hidden:
        lines.append(f"  and {hidden} more problems")
    lines.append("no problem found" if not found.num_problems else f"{found.num_problems} problem(s)")
    return "\n".join(lines)
