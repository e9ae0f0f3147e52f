"""The commands of docs/operations.md: a backup of a running Redis, its restore, and a new password without a gap."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Capture, Drop, DropReason, Stage
from hintloop_contract.opening import open_broker
from hintloop_contract.streams import CAPTURES

from .servers import COMMAND, PASSWORD, SERVER, Node, free_ports, quoted, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, free_ports(1)[0])
    node.start()
    yield node
    node.kill()


def opened(port: int, password: str = PASSWORD) -> Any:
    url = f"redis://:{quoted(password)}@127.0.0.1:{port}/0"
    return open_broker(Config.model_validate({"redis": {"url": url}}))


def capture(turn_id: str) -> Capture:
    return Capture(turn_id=turn_id, engine="vllm", engine_url="", request=b"{}", start_ms=0, end_ms=1)


def back_up(server: Node, file: Path) -> None:
    """`redis-cli --rdb FILE`, while the server runs."""
    file.parent.mkdir()
    command = [COMMAND, "-p", str(server.port), "-a", PASSWORD, "--rdb", str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=180)


@contextmanager
def restored(folder: Path) -> Iterator[int]:
    """A new server on `dump.rdb` of ``folder``: first without an append-only file, then as it is meant to run."""
    port = free_ports(1)[0]
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--requirepass", PASSWORD]
    flags += ["--save", "", "--maxmemory-policy", "noeviction", "--appendfsync", "always"]
    ask = Node(folder, port).ask

    def rewritten() -> bool:
        found = ask("INFO", "persistence")
        return not found["aof_rewrite_in_progress"] and not found["aof_rewrite_scheduled"]

    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SERVER, *flags, "--appendonly", "no"], stdout=log, stderr=log)
        try:
            until("the restored server", lambda: ask("PING"))
            assert ask("CONFIG", "SET", "appendonly", "yes") in ("OK", True)
            until("its append-only file", rewritten)
            process.kill()
            process.wait()
            process = subprocess.Popen([SERVER, *flags, "--appendonly", "yes"], stdout=log, stderr=log)
            until("the server as it is meant to run", lambda: ask("PING"))
            yield port
        finally:
            process.kill()
            process.wait()


async def test_a_backup_of_a_running_redis_restores_streams_groups_and_what_is_held(
    server: Node, tmp_path: Path
) -> None:
    broker = opened(server.port)
    await broker.ensure_groups()
    for number in range(50):
        await broker.append(CAPTURES, capture(f"t{number}"))
    held = await broker.read(CAPTURES, "linker-1", 10, 10)
    version, funnel = await broker.next_version(), await broker.funnel()
    back_up(server, tmp_path / "backup" / "dump.rdb")
    await broker.append(CAPTURES, capture("after the backup"))
    await broker.close()
    server.kill()
    with restored(tmp_path / "backup") as port:
        broker = opened(port)
        assert await broker.durability_problems() == []
        counts = await broker.counts(CAPTURES)
        assert (counts.length, counts.pending) == (50, 10)
        assert await broker.funnel() == funnel
        assert await broker.next_version() == version + 1
        assert not await broker.append(CAPTURES, capture("t1")), "what was seen is known"
        drop = Drop(turn_id="t0", stage=str(Stage.LINK), reason=str(DropReason.SIDE), detail="")
        assert await broker.drop(held[0], drop), "what was held can be settled"
        await broker.close()


async def test_a_new_password_without_a_gap(server: Node) -> None:
    """Both passwords are good until every service has the new one."""
    old = opened(server.port)
    await old.ensure_groups()
    assert server.ask("ACL", "SETUSER", "default", ">new one") == "OK"
    new = opened(server.port, "new one")
    assert await new.append(CAPTURES, capture("a"))
    assert await old.append(CAPTURES, capture("b"))
    server.password = "new one"
    assert server.ask("ACL", "SETUSER", "default", f"<{PASSWORD}") == "OK"
    late = opened(server.port)
    with pytest.raises(DependencyError, match="invalid username-password pair"):
        await late.time_ms()
    assert (await new.counts(CAPTURES)).length == 2
    for broker in (old, new, late):
        await broker.close()
