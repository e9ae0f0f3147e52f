"""The benchmark of forced scores on the wire runs on what the teacher serves today. Its numbers are not looked at."""

from __future__ import annotations

import pytest

from benchmarks.prm import wire


async def test_both_ways_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "NUM_TOKENS", 40)
    monkeypatch.setattr(wire, "NUM_PROMPT", 10)
    goals, measured = await wire.run()
    assert [goal.name for goal in goals] == ["grpc_bytes_share_of_json", "grpc_decode_speedup"]
    for way in ("json_http", "grpc", "grpc_plain"):
        assert measured[way]["bytes_on_the_wire"] > 40 * 64 * 6
        assert all(value > 0 for value in measured[way].values())
    assert goals[0].value is not None and goals[0].value < 0.5
