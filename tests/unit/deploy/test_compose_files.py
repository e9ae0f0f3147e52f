"""The compose files, as far as they can be checked without an engine."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import DEPLOY, ROOT, Tools

COMPOSE = DEPLOY / "docker-compose.yml"
PROFILES = ("gpu", "gpu-vllm", "single-gpu", "single-gpu-vllm", "cpu", "cpu-vllm")


def test_the_compose_files_follow_their_schema(tools: Tools) -> None:
    files = (COMPOSE, DEPLOY / "trainer-images.yml", ROOT / "compose.yaml")
    tools.run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_resolves_every_profile(tools: Tools, tmp_path: Path, profile: str) -> None:
    docker_compose = tools.path("docker-compose")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MODEL_PATH": "/model",
        "PROFILE": profile,
        "COMPOSE_PROFILES": f"{profile},observability,tracing,tools",
    }
    done = subprocess.run(
        [docker_compose, "-f", ROOT / "compose.yaml", "config"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    resolved: dict[str, Any] = yaml.safe_load(done.stdout)
    published = {name: service["ports"] for name, service in resolved["services"].items() if service.get("ports")}
    assert set(published) == {"rollout-proxy", "console", "grafana"}
    assert all(port["host_ip"] == "127.0.0.1" for ports in published.values() for port in ports)
    for name, service in resolved["services"].items():
        assert "container_name" not in service, name
        assert not service.get("privileged"), name
        assert re.search(r":v?\d", service["image"]), f"{name}: {service['image']} is not pinned"
    (trainer,) = [service for name, service in resolved["services"].items() if name.startswith("trainer")]
    commands = resolved["services"]["hintloop"]
    assert (commands["image"], commands["build"]) == (trainer["image"], trainer["build"])
    assert "reservations" not in commands["deploy"]["resources"]


def test_docker_compose_is_there(tools: Tools) -> None:
    assert tools.path("docker-compose").exists()


def test_container_images_are_named_in_deploy_alone() -> None:
    """What is not in `deploy/` starts no container."""
    tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    pattern = re.compile(r"^\s*(image:\s|FROM\s+\w+[/:])", re.MULTILINE)
    allowed = ("deploy/", "tests/", "docs/", "scripts/test-compose")
    found = [
        name
        for name in tracked
        if name.endswith((".yml", ".yaml", "Dockerfile", ".sh", ".py", ".toml"))
        and not name.startswith(allowed)
        and (ROOT / name).is_file()
        and pattern.search((ROOT / name).read_text(errors="replace"))
    ]
    assert found == []
