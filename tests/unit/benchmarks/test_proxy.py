"""The proxy's benchmark: what it sends, what it leaves out, when a goal is met; and its two C programs together."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.goals import Goal
from benchmarks.proxy import measure
from benchmarks.proxy.contestants import DIRECT, LITELLM, OURS, PEER, PEER_SHARED, start_direct
from benchmarks.proxy.contestants import make_site as start_site
from benchmarks.proxy.measure import MODES, Sample, take_sample
from benchmarks.proxy.processes import Core
from benchmarks.proxy.summary import find_goals, summarise
from benchmarks.proxy.wire import NUM_TOKENS, write_wire


def make_sample(contestant: str, mode: str, repeat: int = 0, **changes: Any) -> Sample:
    values = dict.fromkeys((field.name for field in dataclasses.fields(Sample)), 1.0)
    return Sample(**{**values, "contestant": contestant, "mode": mode, "repeat": repeat, "foreign": 0.0, **changes})


@pytest.mark.parametrize(
    ("kind", "value", "met"),
    [("at most", 2.0, True), ("at most", 2.1, False), ("at least", 2.0, True), ("at least", 1.9, False)],
)
def test_a_goal_is_met_at_its_limit(kind: Any, value: float, met: bool) -> None:
    goal = Goal("name", kind, 2.0, value, "ms")
    assert goal.as_json() == {"goal": f"{kind} 2 ms", "value": value, "met": met}
    assert not Goal("name", kind, 2.0, None).met


def test_the_wire_has_the_recorded_shapes(tmp_path: Path) -> None:
    wire = write_wire(tmp_path)
    body = json.loads(wire.body.read_bytes())
    choice = body["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == NUM_TOKENS
    assert body["usage"]["completion_tokens"] == NUM_TOKENS
    assert 15_000 < wire.body.stat().st_size < 18_000
    *chunks, done = wire.stream.read_bytes().removesuffix(b"\n\n").split(b"\n\n")
    assert (len(chunks), done) == (102, b"data: [DONE]")
    choices = [choice for chunk in chunks for choice in json.loads(chunk.removeprefix(b"data: "))["choices"]]
    text = "".join(choice["delta"]["content"] for choice in choices)
    assert text == body["choices"][0]["message"]["content"]
    assert 37_000 < wire.stream.stat().st_size < 43_000
    assert 1_000 < len(wire.request.read_bytes().split(b"\r\n\r\n")[1]) < 1_400


def test_disturbed_samples_are_left_out() -> None:
    samples = [make_sample(OURS, "whole", repeat, cpu_ms=float(repeat)) for repeat in (1, 2, 3)]
    loud = [make_sample(OURS, "whole", 1, cpu_ms=90.0, foreign=measure.FOREIGN_LIMIT + 0.01)] * 5
    row = summarise([*loud, *samples]).row(OURS, "whole")
    assert row is not None and (row.cpu_ms, row.num_samples, row.disturbed) == (2.0, 3, False)


def test_where_all_are_disturbed_the_least_are_taken_and_said() -> None:
    samples = [make_sample(OURS, "whole", 1, cpu_ms=cpu, foreign=share) for cpu, share in ((9.0, 0.9), (5.0, 0.5))]
    row = summarise(samples).row(OURS, "whole")
    assert row is not None and (row.cpu_ms, row.disturbed) == (5.0, True)


def test_goals_compare_with_others_and_with_none() -> None:
    ours = [make_sample(OURS, mode.name, cpu_ms=0.3, per_second=3000.0, memory_mb=70.0) for mode in MODES]
    added = [dataclasses.replace(sample, done_p50=105.0, first_p50=3.0) for sample in ours]
    none = [make_sample(DIRECT, mode.name, done_p50=100.0, first_p50=1.0, cpu_ms=None) for mode in MODES]
    others = [
        make_sample(name, mode.name, per_second=rate)
        for name, rate in ((LITELLM, 60.0), (PEER, 30.0), (PEER_SHARED, 500.0))
        for mode in MODES
    ]
    goals = {goal.name: goal for goal in find_goals(summarise([*added, *none, *others]))}
    assert goals["times_litellm_requests"].value == goals["times_litellm_streams"].value == 50
    assert (goals["times_peer_as_shipped"].value, goals["times_peer_shared_client"].value) == (100, 6)
    assert (goals["added_p50_paced_100ms"].value, goals["added_first_chunk_p50"].value) == (5, 2)
    assert [name for name, goal in goals.items() if not goal.met] == ["times_peer_shared_client"]


def test_what_was_not_measured_is_not_met() -> None:
    assert not any(goal.met for goal in find_goals(summarise([make_sample(DIRECT, "whole", cpu_ms=None)])))


def test_engine_and_load_understand_each_other(tmp_path: Path) -> None:
    """Every answer is whole and good, and as late as asked for."""
    core = Core(max(os.sched_getaffinity(0)))
    try:
        site = start_site(core, tmp_path, write_wire(tmp_path))
        direct = start_direct(site)
        found = {mode.name: take_sample(site, direct, mode, 0, 0.3) for mode in MODES}
        assert all(sample.bad == 0 and sample.count >= measure.CONNECTIONS for sample in found.values())
        assert found["paced"].done_p50 >= 100
        assert found["stream-gap"].done_p50 >= 100 > found["stream-gap"].first_p50
    finally:
        core.stop()
    assert all(server.process.poll() is not None for server in core.servers)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_servers_end_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, time; from pathlib import Path; from benchmarks.proxy.processes import Core\n"
        f"server = Core(max(os.sched_getaffinity(0))).start('sleeper', ['sleep', '100'], Path({str(tmp_path)!r}))\n"
        "print(server.process.pid, flush=True); time.sleep(100)"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 90
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
