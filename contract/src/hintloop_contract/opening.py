"""How a service gets to its streams: one function, so that every service talks to every kind of Redis alike."""

from __future__ import annotations

from hintloop_contract.config.operations import RedisSection
from hintloop_contract.config.schema import Config
from hintloop_contract.history import history_bounds
from hintloop_contract.redis_broker import RedisBroker
from hintloop_contract.redis_connection import connect


def open_broker(config: Config) -> RedisBroker:
    """The streams of the configured policy on the configured Redis. Contacts nothing."""
    redis: RedisSection = config.redis
    client = connect(
        redis.url.get_secret_value(),
        policy=config.policy.name,
        sentinel_password=redis.sentinel_password.get_secret_value(),
        wait_replicas=redis.wait_replicas,
        wait_ms=redis.wait_ms,
    )
    return RedisBroker(
        client,
        config.policy.name,
        turn_retention_s=redis.turn_retention_s,
        history=history_bounds(config.console),
    )
