import io
import json
import statistics
from pathlib import Path

import pytest
from hintloop import funnel
from hintloop.demo import report
from hintloop.demo.advantages import StepAdvantages, pooled
from hintloop.demo.options import DemoOptions
from hintloop.demo.preference import Answer
from hintloop.demo.run import show
from hintloop.demo.user import Ledger
from rich.console import Console

#: What every reader of the report relies on, in order.
KEYS = [
    *("captured", "linked", "judged", "hinted", "scored", "trained", "dropped", "steps", "method", "engine"),
    *("policy_version_before", "policy_version_after", "advantage", "preference_before", "preference_after"),
    *("requests", "refused_requests", "token_mismatches", "seconds"),
]
GOOD = Answer("What is rain?", "rain", "Rain is falling water.", "stop")
BAD = Answer("What is rain?", "rain", "Rain is water. It falls. It is", "length")


def findings(**changes: object) -> report.Findings:
    values: dict[str, object] = {
        "options": DemoOptions(started=100.0),
        "snapshot": funnel.Snapshot(
            steps={
                "captured": 70,
                "linked": 33,
                "judged": 32,
                "hinted": 32,
                "scored": 32,
                "batched": 32,
                "trained": 32,
            },
            drops={
                "link:no_next_state": 30,
                "capture:count_mismatch": 2,
                "link:count_mismatch": 1,
                "capture:ids_missing": 3,
                "link:ids_missing": 1,
                "capture:logprob_missing": 5,
                "link:logprob_missing": 1,
                "capture:side": 4,
            },
        ),
        "steps": 2,
        "version_before": 1,
        "version_after": 3,
        "advantages": pooled([StepAdvantages(10, 0.5, 1.0, 0.6, 0.4)]),
        "before": [BAD] * 3 + [GOOD],
        "after": [GOOD] * 4,
        "ledger": Ledger(requests=80, refused=1),
        "greedy_mismatches": ["one"],
        "ready": 160.0,
        "ended": 400.0,
    }
    return report.Findings(**{**values, **changes})  # type: ignore[arg-type]


def test_report_has_exactly_the_promised_keys() -> None:
    content = report.report(findings())
    assert list(content) == KEYS
    assert set(content["advantage"]) == {"mean", "std", "share_positive", "share_negative"}
    assert {"satisfied", "joint", "n", "joint_ci"} <= set(content["preference_before"])
    assert set(content["seconds"]) == {"setup", "run"}


def test_report_counts() -> None:
    content = report.report(findings())
    reasons = {"no_next_state": 30, "count_mismatch": 3, "ids_missing": 4, "logprob_missing": 6, "side": 4}
    assert content["dropped"] == reasons
    # Of every stage, and one greedy answer that differs.
    assert content["token_mismatches"] == 3 + 4 + 6 + 1
    assert content["preference_before"]["joint"] == 0.25
    assert content["preference_after"]["joint"] == 1.0
    assert content["seconds"] == {"setup": 60.0, "run": 240.0}
    assert (content["requests"], content["refused_requests"]) == (80, 1)


def test_report_is_written_whole(tmp_path: Path) -> None:
    content = report.report(findings())
    report.write(tmp_path / "report.json", content)
    assert json.loads((tmp_path / "report.json").read_text()) == content
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_report_for_people_shows_answers_as_they_are() -> None:
    strange = Answer("What is [rain]?", "rain", "[bold]Rain[/bold] is water.", "stop")
    case = findings(before=[strange], after=[strange])
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(report.render(case, report.report(case)))
    text = console.export_text()
    assert "What is [rain]?" in text
    assert "[bold]Rain[/bold] is water." in text


def test_the_end_of_a_run_reads_well_in_a_file_too(tmp_path: Path) -> None:
    questions = ["rain", "snow", "a lake", "a desert"]
    case = findings(
        before=[Answer(f"What is {topic}?", topic, f"Before {topic}.", "stop") for topic in questions],
        after=[Answer(f"What is {topic}?", topic, f"After {topic}.", "stop") for topic in questions],
        ledger=Ledger(requests=80, refused=1, reasons=["APIError: [gone]"]),
    )
    folder = tmp_path / ("long" * 20)
    written = io.StringIO()
    show(Console(file=written, width=80), case, report.report(case), folder)
    lines = written.getvalue().splitlines()
    for topic in questions[:3]:
        assert any(f"What is {topic}?" in line and f"Before {topic}." in line and "After" in line for line in lines)
    assert not any("a desert" in line for line in lines)
    assert any("link:no_next_state" in line and "30" in line for line in lines)
    assert "APIError: [gone]" in lines
    assert any(line.endswith(str(folder / "report.json")) for line in lines)
    assert any(line.endswith(str(folder / "tokens.html")) for line in lines)
    assert "\x1b" not in written.getvalue()
    assert max(len(line) for line in lines if str(folder) not in line) <= 80


def test_pooled_advantages_equal_those_of_all_tokens() -> None:
    steps = [[1.0, -2.0, 0.0, 0.5], [3.0], [-1.0, -1.5, 0.25]]
    records = [
        StepAdvantages(
            len(step),
            statistics.fmean(step),
            statistics.pstdev(step),
            sum(value > 0 for value in step) / len(step),
            sum(value < 0 for value in step) / len(step),
        )
        for step in steps
    ]
    every = [value for step in steps for value in step]
    result = pooled([*records, StepAdvantages(0, 0.0, 0.0, 0.0, 0.0)])
    assert result.mean == pytest.approx(statistics.fmean(every))
    assert result.std == pytest.approx(statistics.pstdev(every))
    assert result.share_positive == pytest.approx(4 / 8)
    assert result.share_negative == pytest.approx(3 / 8)
