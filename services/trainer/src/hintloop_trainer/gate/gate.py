"""The gate of one run: what was measured of the base and of the last released version, and candidates against both.

Owns measurements and verdicts; what follows from them is the loop's business (``gate_part``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hintloop_contract.config.gate import GateSection

from hintloop_trainer.gate.answerers import Answerer
from hintloop_trainer.gate.measures import Measured, measure
from hintloop_trainer.gate.probes import Probe
from hintloop_trainer.gate.verdict import Failing, failings
from hintloop_trainer.publish.release import Release

#: Stands for the student's first weights, which are no version of ours.
BASE_VERSION = 0


class Gate:
    """Measures weights by their answers to the probes."""

    def __init__(self, section: GateSection, probes: Sequence[Probe], answerer: Answerer, base: Path) -> None:
        """``base`` is the directory of the student's first weights."""
        self._section = section
        self._probes = probes
        self._answerer = answerer
        self._base_directory = base
        self._base: Measured | None = None
        self._released: Measured | None = None
        self._version: int | None = None

    async def measure(self, candidate: Release) -> Measured:
        """A candidate's answers in numbers; its directory holds whole weights.

        Raises:
            ConfigError: the probe can never be answered as it is configured.
            DependencyError: it could not be answered this time.
        """
        return measure(self._probes, await self._answerer.look(candidate))

    def base_is(self, measured: Measured) -> None:
        """The student's first weights were measured already."""
        self._base = measured

    async def measure_base(self) -> None:
        """Measure the student's first weights, unless that was done. Raises as :meth:`measure` does."""
        if self._base is None:
            self._base = await self.measure(Release(BASE_VERSION, self._base_directory, [], []))

    def failings(self, candidate: Measured) -> list[Failing]:
        """Margins that ``candidate`` is past, against the last released version and against the base."""
        found: list[Failing] = []
        if self._released is not None:
            found += failings(candidate, self._released, self._section, against=f"version {self._version}")
        if self._base is not None:
            factor = self._section.base_factor
            found += failings(candidate, self._base, self._section, against="the first weights", factor=factor)
        return found

    def released(self, version: int, measured: Measured) -> None:
        """``version`` serves now: later candidates are compared with it."""
        self._version, self._released = version, measured

    async def close(self) -> None:
        """End what answers."""
        await self._answerer.close()
