"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket

from hintloop.errors import CommandError

#: Below the range that Linux takes outgoing connections from, so that none of those steals a chosen port.
RANGE = range(20_000, 32_000)


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(num: int, host: str = "127.0.0.1") -> list[int]:
    """``num`` different free ports."""
    chosen: list[int] = []
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        if is_free(host, port):
            chosen.append(port)
            if len(chosen) == num:
                return chosen
    raise CommandError(f"no {num} free ports on {host} between {RANGE.start} and {RANGE.stop}")


def require_free(host: str, port: int, field: str) -> int:
    """``port``, which ``field`` of the configuration asks for.

    Raises:
        CommandError: something listens there already.
    """
    if not is_free(host, port):
        raise CommandError(f"{field} = {port}: something already listens on {host}:{port}; end it or change the port")
    return port


def choose_near(host: str, wanted: int, field: str) -> tuple[int, str]:
    """``wanted``, which is ``field``'s default, when it is free, else another; and a note in the second case."""
    if is_free(host, wanted):
        return wanted, ""
    port = choose(1, host)[0]
    return port, f"{field}: something already listens on {host}:{wanted}, so {port} is taken instead"
