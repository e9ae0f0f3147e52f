"""The shipped compose file under test: its environment, its commands, and what Docker says of its containers."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = "hintloop"
#: Secrets of the check, by their names in the compose file.
SECRETS = ("proxy_api_keys", "prm_caller_key", "console_password", "policy_api_key")


def run(*command: str, check: bool = True, stdin: str | None = None, timeout_s: float = 300) -> str:
    """A command's output; with its errors where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and done.returncode:
        raise AssertionError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool], what: str, timeout_s: float = 60) -> Any:
    """What ``look`` gives, once it is as ``wanted``."""
    end = time.monotonic() + timeout_s
    while True:
        found = look()
        if wanted(found):
            return found
        assert time.monotonic() < end, f"{what}: still {found!r} after {timeout_s:g} s"
        time.sleep(0.5)


class Stack:
    """`.env.example`, copied and filled in as a user would, for two cores and no card."""

    def __init__(self, folder: Path) -> None:
        """Keep model, secrets and configuration in ``folder``, which exists."""
        self.folder = folder
        shutil.copytree(ROOT / "tests/compose/config", folder / "own")
        self.secrets = {name: secrets.token_hex(16) for name in SECRETS}
        self.redis_password = secrets.token_hex(16)
        for name, value in {**self.secrets, "redis_password": self.redis_password}.items():
            (folder / name).write_text(f"{value}\n")
        self.ports = {"PROXY_PORT": free_port(), "CONSOLE_PORT": free_port(), "GRAFANA_PORT": free_port()}
        settings = {
            "MODEL_PATH": folder / "model",
            "CONFIG_DIR": folder / "own",
            "JUDGES": 3,
            "TRAINER_PROCESSES": 1,
            "MAX_MODEL_LEN": 2048,
            "POLICY_GPU_0": 11,
            **self.ports,
            **{f"{name.upper()}_FILE": folder / name for name in (*SECRETS, "redis_password")},
        }
        text = (ROOT / ".env.example").read_text()
        for name, value in settings.items():
            line = f"{name}={value}"
            text, changed = re.subn(rf"^#?{name}=.*$", line, text, count=1, flags=re.MULTILINE)
            text += "" if changed else f"{line}\n"
        (folder / "env").write_text(text)

    @property
    def proxy_url(self) -> str:
        """Where agents talk."""
        return f"http://127.0.0.1:{self.ports['PROXY_PORT']}"

    def secret(self, name: str) -> str:
        """What a secret is."""
        return self.secrets[name]

    def compose(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """`docker compose …` in a clone's root."""
        return run("docker", "compose", "--env-file", str(self.folder / "env"), *arguments, check=check, stdin=stdin)

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """What `docker inspect` says of the containers, of one service or of all."""
        label = f"label=com.docker.compose.project={PROJECT}"
        more = ["--filter", f"label=com.docker.compose.service={service}"] if service else []
        ids = run("docker", "ps", "-aq", "--filter", label, *more).split()
        found: list[dict[str, Any]] = json.loads(run("docker", "inspect", *ids)) if ids else []
        return found

    def services(self) -> dict[str, dict[str, Any]]:
        """The resolved services of the profile."""
        found: dict[str, dict[str, Any]] = json.loads(self.compose("config", "--format", "json"))["services"]
        return found

    def kill(self, service: str) -> str:
        """End one container's processes as a crash does; Docker's restart policy is left to do its part.

        Gives the container's id.
        """
        container = self.containers(service)[0]
        os.kill(int(container["State"]["Pid"]), signal.SIGKILL)
        return str(container["Id"])

    def wait_restarted(self, container: str, timeout_s: float = 120) -> None:
        """Until it was restarted by Docker, and is healthy."""

        def state() -> tuple[int, str]:
            (found,) = json.loads(run("docker", "inspect", container))
            return found["RestartCount"], found["State"].get("Health", {}).get("Status", "")

        eventually(state, lambda now: now[0] >= 1 and now[1] == "healthy", f"restart of {container[:12]}", timeout_s)

    def python(self, service: str, script: str) -> Any:
        """What a script, run by the Python of a service's container, prints as JSON."""
        return json.loads(self.compose("exec", "-T", service, "python", "-", stdin=script))

    def volume(self, name: str) -> Path:
        """Where a volume's files are."""
        return Path(os.environ["HINTLOOP_DOCKER_DATA"]) / "volumes" / f"{PROJECT}_{name}" / "_data"

    def keep_logs(self, folder: Path) -> None:
        """Write down what the containers said."""
        (folder / "containers.log").write_text(self.compose("logs", "--no-color", "--timestamps", check=False))
        (folder / "containers.txt").write_text(self.compose("ps", "-a", check=False))
