"""Structured logs on standard error. Owns format and masking; every line carries the `service` field."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from hintloop_contract.config import LoadedConfig
    from hintloop_contract.config.schema import LoggingSection

#: What stands in the place of a secret, wherever one would be shown.
MASK = "********"
SECRET_WORDS = ("api_key", "authorization", "password", "secret", "token")
_NOT_SECRET = ("tokens", "token_ids")


def _mask(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    for key, value in event.items():
        lowered = key.lower()
        if (
            value
            and isinstance(value, str)
            and any(w in lowered for w in SECRET_WORDS)
            and not any(w in lowered for w in _NOT_SECRET)
        ):
            event[key] = MASK
    return event


def configure_logging(service: str, section: LoggingSection) -> structlog.stdlib.BoundLogger:
    """Set up logs for ``service`` and give its logger. The standard library's records take the same way."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _mask,
    ]
    renderer: structlog.typing.Processor
    if section.format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    level = getattr(logging, section.level.upper())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[_strip_meta, renderer])
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


def _strip_meta(
    logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(logger, method, event)


def log_resolved(loaded: LoadedConfig) -> None:
    """Log the resolved configuration once, secrets masked, with the origin of what is not a default."""
    values = {path: value for path, value, origin in loaded.rows() if origin != "default"}
    structlog.get_logger().info("configuration resolved", **{"set": values})
