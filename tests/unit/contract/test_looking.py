"""One look at a broker that changes meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.diagnosis import looking
from hintloop_contract.diagnosis.looking import Recent, look
from hintloop_contract.testing.memory import MemoryBroker


class Releasing(MemoryBroker):
    """Releases a version whenever its weights were read, ``releases`` times."""

    def __init__(self, releases: int) -> None:
        super().__init__()
        self.version, self.left, self.readings = 1, releases, 0

    async def weights(self) -> WeightsState:
        state = WeightsState(self.version)
        self.readings += 1
        if self.left:
            self.left -= 1
            self.version += 1
        return state

    async def get_status(self, service: str) -> dict[str, str]:
        return {"http://a": str(self.version)} if service == "engines" else {}


@pytest.mark.parametrize("releases", [0, 1, 2])
def test_a_release_in_between_shows_no_engine_behind(releases: int) -> None:
    seen = asyncio.run(look(Releasing(releases), Recent()))
    assert (seen.weights.current, seen.engines) == (1 + releases, {"http://a": str(1 + releases)})


def test_releases_without_end_do_not_hold_a_look() -> None:
    broker = Releasing(1_000)
    asyncio.run(look(broker, Recent()))
    assert broker.readings == looking.MOST_READINGS
