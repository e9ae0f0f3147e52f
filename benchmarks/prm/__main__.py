"""`python -m benchmarks.prm`: packed gRPC against JSON over HTTP, four judges against one, how well a judge reads.

Goals: the packed form takes at most a fifth of the bytes, and is decoded at least ten times faster, in the form that
the trainer asks for by default; the plain form (`prm.grpc_compression = "none"`) is measured beside it.
Four judges judge at least 3.8 times as much as one. Written to `.hintloop/bench/prm.json`.
"""

from __future__ import annotations

import asyncio

from hintloop_contract.config.operations import LoggingSection
from hintloop_contract.logs import configure_logging

from benchmarks.goals import print_goals, write_report
from benchmarks.prm import quality, scaling, wire


def main() -> None:
    """Measure, write, and print the goals."""
    configure_logging("bench", LoggingSection(level="error"))
    goals, measured = asyncio.run(wire.run())
    judges, scaled = asyncio.run(scaling.run())
    goals += judges
    path = write_report("prm", goals, wire=measured, judges=scaled, judge_quality=quality.run())
    print_goals("prm", goals)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
