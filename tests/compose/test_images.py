"""The images that the shipped Dockerfiles make: size, version, user."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.compose.stack import ROOT, run

#: All that the compose file builds, but the engines (and the trainers, which are built elsewhere).
SERVICES = sorted(
    name
    for name, service in yaml.safe_load((ROOT / "deploy/docker-compose.yml").read_text())["services"].items()
    if "build" in service and "engine" not in name
)
#: Megabytes (10^6 bytes) of the published bases, in whose place those of this check were made here.
UPSTREAM_MB = {"python": 131, "redis": 117}
LIMIT_MB = 300


def image(name: str) -> dict:
    (found,) = json.loads(run("docker", "image", "inspect", name))
    return found


def own_mb(name: str, base: str) -> float:
    """What an image adds to its base."""
    return (image(name)["Size"] - image(base)["Size"]) / 1e6


def test_every_service_is_looked_at() -> None:
    assert set(SERVICES) >= {"redis", "rollout-proxy", "judge", "teacher", "console"}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_small(service: str) -> None:
    kind = "redis" if service == "redis" else "python"
    base = {"python": "python:3.11.14-slim-bookworm", "redis": "redis:7.4.7-bookworm"}[kind]
    size = own_mb(f"hintloop/{service}:0.1.0", base) + UPSTREAM_MB[kind]
    print(f"{service}: {size:.0f} MB")

    assert size < LIMIT_MB


@pytest.mark.parametrize("name", [*SERVICES, "trainer-cpu"])
def test_an_image_names_its_version_and_runs_as_nobody(name: str) -> None:
    config = image(f"hintloop/{name}:0.1.0")["Config"]

    assert config["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    assert config["User"].split(":")[0] not in ("", "0", "root")
