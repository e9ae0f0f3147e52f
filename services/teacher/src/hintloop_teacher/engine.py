"""The PRM engine over its life: probed before the first score, and again whenever it was away."""

from __future__ import annotations

import asyncio
import math
import time

import structlog
from hintloop_contract.config.schema import PrmSection
from hintloop_contract.errors import DependencyError

from hintloop_teacher.errors import ProbeError
from hintloop_teacher.http import EngineClient
from hintloop_teacher.probe import ProbeReport, probe
from hintloop_teacher.scoring import DEPENDENCY, ForcedScorer
from hintloop_teacher.vocabulary import Vocabulary

LOOK_AGAIN_S = 5.0


class TeacherEngine:
    """Holds the scorer once the engine is probed."""

    def __init__(self, client: EngineClient, section: PrmSection, vocabulary: Vocabulary, top_k: int) -> None:
        """``top_k``: candidates per token that the method needs."""
        self._client = client
        self._section = section
        self.vocabulary = vocabulary
        self._top_k = top_k
        self._scorer: ForcedScorer | None = None
        self._report: ProbeReport | None = None
        self._problem: ProbeError | None = None
        self._probed = -math.inf
        self._probing = asyncio.Lock()
        self._log = structlog.get_logger()

    @property
    def scorer(self) -> ForcedScorer:
        """The scorer. Raises ``DependencyError`` before the probe."""
        if self._scorer is None:
            raise DependencyError(DEPENDENCY, f"{self._client.root_url} is not probed yet")
        return self._scorer

    @property
    def report(self) -> ProbeReport | None:
        """What the probe found, or ``None`` before it."""
        return self._report

    @property
    def problem(self) -> ProbeError | None:
        """Why the engine that stands there now cannot teach, or ``None``."""
        return self._problem

    async def prepare(self) -> ProbeReport:
        """Probe the engine.

        Raises:
            ProbeError: it cannot serve as teacher.
            DependencyError: it is away.
        """
        async with self._probing:
            return await self._probe()

    async def prepared(self) -> ForcedScorer:
        """The scorer; the first who asks for it probes the engine, the others wait for that.

        Raises:
            ProbeError: it cannot serve as teacher.
            DependencyError: it is away.
        """
        if self._report is None:
            async with self._probing:
                if self._report is None:
                    await self._probe()
        return self.scorer

    async def _probe(self) -> ProbeReport:
        try:
            scorer, report = await probe(self._client, self._section, self.vocabulary, self._top_k)
        except ProbeError as error:
            self._problem = error
            raise
        self._scorer, self._report, self._problem = scorer, report, None
        self._probed = time.monotonic()
        self._log.info("prm engine probed", **report.as_dict())
        return report

    async def ready(self) -> bool:
        """Whether the engine is back: it answers, and still can teach (another one may stand there now)."""
        try:
            await self.prepare()
        except DependencyError:
            return False
        except ProbeError as error:
            self._log.error("the prm engine came back as one that cannot teach", detail=str(error))
            return False
        return True

    async def check_again(self, because: str) -> None:
        """A turn could not be scored: see whether that is the engine's doing. Looks every few seconds at most.

        Raises:
            DependencyError: the engine can teach no more, whatever the turn; it is waited for.
        """
        async with self._probing:
            # Turns that fail together look once.
            if time.monotonic() - self._probed < LOOK_AGAIN_S:
                return
            try:
                await self._probe()
            except ProbeError as error:
                raise DependencyError(DEPENDENCY, f"{because}; probed again: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
