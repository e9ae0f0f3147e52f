from hintloop_contract.testing.memory import MemoryBroker
from hintloop_rollout_proxy.clock import RedisClock


class Behind(MemoryBroker):
    """Its time is what a test says."""

    def __init__(self, time_ms: int) -> None:
        super().__init__("default")
        self.said_ms = time_ms

    async def time_ms(self) -> int:
        return self.said_ms


async def test_time_is_redis_time() -> None:
    broker = Behind(2_000_000_000_000)
    clock = RedisClock(broker)
    await clock.measure()

    assert 0 <= clock.now_ms() - broker.said_ms < 5_000


async def test_a_late_measurement_does_not_turn_time_back() -> None:
    broker = Behind(2_000_000_000_000)
    clock = RedisClock(broker)
    await clock.measure()
    began_ms = clock.now_ms()

    broker.said_ms -= 3_600_000
    await clock.measure()

    assert clock.now_ms() >= began_ms
