"""Ids of turns, sessions and consumers."""

from __future__ import annotations

import secrets
import socket

import uuid_utils


def new_id() -> str:
    """A UUIDv7 as text: unique, and ordered by the time it was made."""
    return str(uuid_utils.uuid7())


def consumer_name(service: str) -> str:
    """Name of this process in a consumer group: ``<service>-<hostname>-<nonce>``, never shared."""
    return f"{service}-{socket.gethostname()}-{secrets.token_hex(4)}"
