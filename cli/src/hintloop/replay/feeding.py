"""Gives a file's turns to the judge, in order, no more at a time than the trainer can use up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Drop, DropReason, Stage
from hintloop_contract.recorded import Lack, RecordedTurn, lack, linked_turn, turn_record

from hintloop.replay.lines import recorded_turns
from hintloop.replay.recording import RecordingBroker
from hintloop.replay.store import Store
from hintloop.replay.until import Until

#: How often it is looked whether there is room again, seconds.
LOOK_S = 0.1
#: Turns that wait beside those that are worked on.
SPARE_TURNS = 64


class Feeder:
    """One side's turns. Goes on where an interrupted run ended."""

    def __init__(self, config: Config, broker: RecordingBroker, store: Store, side: str, until: Until) -> None:
        """``config`` is the side's own, ``broker`` its streams."""
        self._config = config
        self._broker = broker
        self._store = store
        self._side = side
        self._until = until
        self.finished = False
        """Whether the whole file was given."""

    @property
    def window(self) -> int:
        """Most turns under way at once."""
        worked_on = 2 * self._config.prm.max_concurrency + SPARE_TURNS
        return worked_on + (2 * self._config.rollout.rollout_batch_size if self._until is Until.TRAINER else 0)

    async def run(self, path: Path) -> None:
        """Give all turns that were not given yet.

        Raises:
            CommandError: a line is no recorded turn.
        """
        turns = recorded_turns(path, self._store.num_fed_lines(self._side))
        for count, (number, turn) in enumerate(turns):
            if count % (SPARE_TURNS // 2) == 0:
                await self._wait_for_room()
            await self._insist(number, turn)
        self.finished = True

    async def _wait_for_room(self) -> None:
        while True:
            try:
                if await self._broker.untrained() < self.window:
                    return
            except DependencyError:
                pass
            await asyncio.sleep(LOOK_S)

    async def _insist(self, number: int, turn: RecordedTurn) -> None:
        # The row is there before any finding can be written into it.
        while True:
            try:
                await self._give(turn, number)
                return
            except DependencyError:
                await asyncio.sleep(LOOK_S)

    async def _give(self, turn: RecordedTurn, number: int) -> None:
        self._store.expect(self._side, turn.turn_id, number)
        lacking = self._lack(turn)
        if lacking is not None:
            drop = Drop(
                turn_id=turn.turn_id,
                stage=lacking.stage,
                reason=lacking.reason,
                detail=lacking.detail,
                tenant=turn.session.tenant,
            )
            await self._broker.drop(None, drop)
        else:
            version = (await self._broker.weights()).current or 0
            linked = linked_turn(
                turn,
                engine=self._config.rollout.engine,
                engine_url=self._config.engine_urls[0],
                version=version,
                now_ms=await self._broker.time_ms(),
            )
            await self._broker.release_turn(linked, turn_record(turn))
        self._store.set_note(self._side, "fed", str(number))

    def _lack(self, turn: RecordedTurn) -> Lack | None:
        """Why the turn cannot come as far as it is to; the live loop's reasons."""
        found = lack(turn)
        if self._until is Until.JUDGE:
            return found if found is not None and found.stage is Stage.LINK else None
        versions = turn.versions
        if found is None and versions is not None and self._until is Until.TRAINER:
            mixed = versions.oldest != versions.newest and not self._config.training.allow_mixed_version
            if mixed:
                detail = f"made by versions {versions.oldest} to {versions.newest}"
                return Lack(Stage.TRAIN, DropReason.MIXED_VERSION, detail)
        return found
