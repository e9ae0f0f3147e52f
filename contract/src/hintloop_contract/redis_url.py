"""Addresses of a Redis that can move: Sentinels and a service, or some of a Cluster's nodes. Owns their spelling."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hintloop_contract.errors import ConfigError

Address = tuple[str, int]

SENTINEL_PORT = 26379
REDIS_PORT = 6379
_SCHEME = re.compile(r"^(redis|rediss)\+(sentinel|cluster)$")


@dataclass(frozen=True, slots=True)
class MovableUrl:
    """A parsed ``redis+sentinel://`` or ``redis+cluster://`` address.

    ``hosts`` are the Sentinels, or some of the Cluster's nodes; ``service`` is empty for a Cluster; ``plain`` is the
    address of one Redis with the same user, password, database and options.
    """

    kind: str
    tls: bool
    hosts: tuple[Address, ...]
    service: str
    plain: str = field(repr=False)


def is_movable(url: str) -> bool:
    """Whether ``url`` names Sentinels or a Cluster."""
    return _SCHEME.match(url.partition("://")[0]) is not None


def parse_movable(url: str) -> MovableUrl:
    """Read ``redis+sentinel://[user:password@]host[:port],.../service[/db]`` or
    ``redis+cluster://[user:password@]host[:port],...``; ``rediss+`` for TLS.

    Raises:
        ConfigError: it is neither; the message holds no part of the address, which may hold a password.
    """
    scheme, _, rest = url.partition("://")
    match = _SCHEME.match(scheme)
    if match is None:
        raise ConfigError("the address names neither Sentinels (redis+sentinel://) nor a Cluster (redis+cluster://)")
    protocol, kind = match.groups()
    authority, _, behind = rest.partition("/")
    path, _, query = behind.partition("?")
    login, _, hosts = authority.rpartition("@")
    service, _, database = path.strip("/").partition("/")
    if kind == "sentinel" and not service:
        raise ConfigError("the name of the service is missing; write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    if kind == "cluster" and path.strip("/"):
        raise ConfigError("a Cluster has no database and no service; leave out what stands behind its hosts")
    if database and not database.isdigit():
        raise ConfigError("the database behind the service's name is no number")
    plain = f"{protocol}://{login + '@' if login else ''}localhost/{database or 0}{'?' if query else ''}{query}"
    port = SENTINEL_PORT if kind == "sentinel" else REDIS_PORT
    addresses = tuple(_address(text, port) for text in hosts.split(","))
    return MovableUrl(kind, protocol == "rediss", addresses, service, plain)


def _address(text: str, default_port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port if parts.port is not None else default_port
    except ValueError:
        parts, port = None, 0
    if parts is None or not parts.hostname or text.split() != [text] or not 0 < port < 65536:
        raise ConfigError("one of its hosts is no HOST or HOST:PORT; separate several by commas alone")
    return parts.hostname, port
