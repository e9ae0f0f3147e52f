"""A socket that HTTP is served on, had before any server is started. Owns the words when it cannot be had."""

from __future__ import annotations

import socket

from hintloop_contract.errors import ConfigError


def listen(host: str, port: int, section: str) -> socket.socket:
    """Listen on ``host`` and ``port``, which the configuration has in ``section``.

    Raises:
        ConfigError: the port is taken, or the host is none of this machine's.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), port), family=family)
    except OSError as error:
        message = f"{section}.host {host!r} and {section}.port {port} cannot be listened on: {error.strerror}"
        raise ConfigError(f"{message}; choose another") from error
