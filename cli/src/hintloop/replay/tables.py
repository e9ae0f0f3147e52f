"""A replay's figures as tables, for the terminal and for the page."""

from __future__ import annotations

from rich import table as rich_table
from rich.console import Group, RenderableType
from rich.text import Text

from hintloop.replay.spread import PERCENTILES
from hintloop.replay.summary import SCORES, Agreement, SideFigures
from hintloop.report.tables import Table
from hintloop.terminal import harmless

NUM_HINTS = 8
_NAMES = {1: "+1", 0: "0", -1: "−1", None: "none"}


def side_tables(side: SideFigures) -> list[Table]:
    """All tables of a side that have a row."""
    return [table for table in (_turns(side), _judge(side), _advantages(side), _hints(side)) if table.rows]


def _turns(side: SideFigures) -> Table:
    rows = [(name, str(number), _percent(number, side.turns)) for name, number in side.outcomes.most_common()]
    for reason, number in side.drops.most_common():
        rows.append((f"dropped, {reason}", str(number), _percent(number, side.turns)))
    return Table("What became of the turns", ("", "turns", "share"), rows)


def _judge(side: SideFigures) -> Table:
    if not side.judged:
        return Table("", ("",), [])
    rows = [("turns judged", str(side.judged), "")]
    for score in SCORES:
        if side.scores[score]:
            rows.append((f"score {_NAMES[score]}", str(side.scores[score]), _percent(side.scores[score], side.judged)))
    rows.append(("with a hint", str(side.num_hints), _percent(side.num_hints, side.judged)))
    if side.votes:
        failed = side.failed_votes.total()
        rows.append(("votes asked", str(side.votes), ""))
        rows.append(("votes failed", str(failed), _percent(failed, side.votes)))
        for reason, number in side.failed_votes.most_common():
            rows.append((f"failed, {reason}", str(number), _percent(number, side.votes)))
        if side.scored_by_votes:
            rows.append(
                ("turns whose votes differ", str(side.split_votes), _percent(side.split_votes, side.scored_by_votes))
            )
    return Table("Judge", ("", "number", "share"), rows)


def _advantages(side: SideFigures) -> Table:
    spread = side.advantages
    if not spread.count:
        return Table("", ("",), [])
    rows = [
        ("tokens", f"{spread.count:,}"),
        ("mean ± deviation", f"{spread.mean:+.4f} ± {spread.std:.4f}"),
        ("above 0 / below 0", f"{spread.positive / spread.count:.1%} / {spread.negative / spread.count:.1%}"),
        ("|advantage| above 10", f"{spread.far / spread.count:.2%}"),
        *((f"percentile {percent}", f"{spread.percentile(percent):+.2f}") for percent in PERCENTILES),
    ]
    if side.incomparable:
        rows.append(("turns left out, sampled at another temperature or truncated", str(side.incomparable)))
    return Table("Advantages by token, all turns", ("", "nats"), rows)


def _hints(side: SideFigures) -> Table:
    rows = [(hint, str(number), _percent(number, side.num_hints)) for hint, number in side.hints.most_common(NUM_HINTS)]
    return Table(f"Hints: {side.num_hints} given, {len(side.hints)} different", ("hint", "times", "share"), rows)


def agreement_table(found: Agreement) -> Table:
    """How far the two sides agree."""
    rows: list[tuple[str, str]] = [("turns that both judged", str(found.both_judged))]
    if found.score_agreement is not None:
        rows.append(("same score", f"{found.score_agreement:.1%}"))
    if found.kappa is not None:
        rows.append(("Cohen's kappa of the scores (1: always the same, 0: as by chance)", f"{found.kappa:.2f}"))
    if found.both_judged and not found.compares_scores:
        rows.append(("scores are not compared", "one side gave none"))
    for (a, b), number in sorted(found.matrix.items(), key=lambda item: -item[1]):
        if a != b and found.compares_scores:
            rows.append((f"a says {_NAMES[a]}, b says {_NAMES[b]}", str(number)))
    names = {"both": "hint from both", "only_a": "hint from a alone", "only_b": "hint from b alone"}
    rows += [(label, str(found.hints[name])) for name, label in names.items()]
    if found.hints["both"]:
        rows.append(("the same words, where both gave one", _percent(found.hints["same"], found.hints["both"])))
    if found.tokens:
        rows.append(("tokens with an advantage on both sides", f"{found.tokens:,}"))
        rows.append(("advantages of the same sign", _percent(found.same_sign, found.tokens)))
    if found.correlation is not None:
        rows.append(("correlation of the advantages", f"{found.correlation:+.3f}"))
    return Table("a against b, turn by turn", ("", ""), rows)


def differing_table(found: Agreement) -> Table:
    """Some turns that the sides score differently."""
    rows = []
    for mine, theirs in found.examples:
        a, b = mine.judgement, theirs.judgement
        assert a is not None and b is not None, "examples are judged turns"
        said = [f"{_NAMES[one.score]}{f': {one.hint}' if one.hint else ''}" for one in (a, b)]
        rows.append((str(mine.line), mine.turn_id, *said))
    return Table("Turns scored differently, the first ones", ("line", "turn", "a", "b"), rows)


def terminal(table: Table) -> RenderableType:
    """A table for a terminal."""
    shown = rich_table.Table(show_edge=False, pad_edge=False)
    for place, name in enumerate(table.names):
        shown.add_column(Text(name), overflow="fold", justify="left" if place == 0 else "right")
    for row in table.rows:
        shown.add_row(*(Text(harmless(cell)) for cell in row))
    # A table's own title is broken at the table's width.
    return Group(Text(table.title, style="bold"), shown, "")


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""
