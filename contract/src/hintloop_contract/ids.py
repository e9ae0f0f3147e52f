"""Ids of turns, sessions and consumers."""

from __future__ import annotations

import secrets
import socket

import uuid_utils

#: What adapters of a policy are called in its engines, before the version.
ADAPTER_PREFIX = "hintloop-"


def new_id() -> str:
    """A UUIDv7 as text: unique, and ordered by the time it was made."""
    return str(uuid_utils.uuid7())


def consumer_name(service: str) -> str:
    """Name of this process in a consumer group: ``<service>-<hostname>-<nonce>``, never shared."""
    return f"{service}-{socket.gethostname()}-{secrets.token_hex(4)}"


def adapter_name(version: int) -> str:
    """The name under which engines serve the adapter of ``version``: the weights that a name means never change."""
    return f"{ADAPTER_PREFIX}{version}"


def adapter_version(name: str) -> int | None:
    """The version of an adapter's name; ``None`` for a name that is none of ours."""
    number = name.removeprefix(ADAPTER_PREFIX)
    return int(number) if name.startswith(ADAPTER_PREFIX) and number.isdecimal() else None
