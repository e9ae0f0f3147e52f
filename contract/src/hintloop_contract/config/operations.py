"""Sections of what all services share: Redis and logs."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from hintloop_contract.config.section import MAX_SECONDS, KeptSeconds, Positive, Section, http_address
from hintloop_contract.errors import ConfigError
from hintloop_contract.redis_url import is_movable, parse_movable


class RedisSection(Section):
    """Redis."""

    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Address with password, if any: `redis://`, `rediss://` or `unix://`; of several Redis
    `redis+sentinel://[:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE` (the Sentinels) or
    `redis+cluster://[:PASSWORD@]HOST:PORT,HOST:PORT` (some of the nodes); `rediss+…` by TLS."""
    sentinel_password: SecretStr = SecretStr("")
    """Password of the Sentinels themselves, if they ask for one; that of Redis stands in `url`."""
    wait_replicas: Annotated[int, Field(ge=0, le=16)] = 0
    """A write counts once this many replicas have it. With 0 a failover forgets what the promoted replica lacked, so
    at least 1 is asked for behind Sentinels and on a Cluster."""
    wait_ms: Annotated[int, Field(ge=1, le=15_000)] = 1000
    """How long a write waits for them; after that Redis counts as away, and the write is made again when it is not."""
    claim_idle_ms: Annotated[int, Field(ge=1000, le=MAX_SECONDS * 1000)] = 60_000
    """A message held this long without renewal is claimed by another worker."""
    max_attempts: Positive = 3
    """Failures of one message before it goes to `dead`."""
    turn_retention_s: KeptSeconds = 3600
    """How long a turn's record is kept after its end."""
    check_durability: bool = True
    """Refuse to start unless `maxmemory-policy` is `noeviction` and AOF is on."""

    @field_validator("url")
    @classmethod
    def _redis_address(cls, value: SecretStr) -> SecretStr:
        if is_movable(value.get_secret_value()):
            try:
                parse_movable(value.get_secret_value())
            except ConfigError as error:
                raise ValueError(str(error)) from None
            return value
        parts = urlsplit(value.get_secret_value())
        try:
            known = parts.scheme == "unix" or (parts.scheme in ("redis", "rediss") and parts.port != 0)
        except ValueError:
            known = False
        if not known:
            # What is wrong with it cannot be shown: it may hold a password.
            raise ValueError(
                "it is no address of a Redis; write redis://[:PASSWORD@]HOST:PORT/DB, rediss:// or unix://PATH, "
                "redis+sentinel://HOST:PORT,…/SERVICE or redis+cluster://HOST:PORT,…"
            )
        return value


class LoggingSection(Section):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written."""
    format: Literal["json", "console"] = "console"
    """One JSON object a line, or text for people."""


class TracingSection(Section):
    """Traces by OpenTelemetry. Headers for the collector come by `OTEL_EXPORTER_OTLP_HEADERS`."""

    otlp_endpoint: str = ""
    """Collector that takes OTLP over HTTP (`http://host:4318`); empty turns tracing off."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of traces that begin here and are kept; a client's own decision in `traceparent` stands."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, value: str) -> str:
        return http_address(value).removesuffix("/v1/traces") if value else value
