"""Every Dockerfile, without an engine: bases, users, labels, versions of what is installed, and what compose builds."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .conftest import DEPLOY, ROOT, Tools

IMAGES = DEPLOY / "images"
DOCKERFILES = sorted(IMAGES.glob("**/*Dockerfile"))
VERSION = re.search(r'^version = "(.+)"$', (ROOT / "cli/pyproject.toml").read_text(), re.MULTILINE)[1]  # type: ignore[index]

each_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(IMAGES)))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instruction and what follows, lines that go on joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def arguments(path: Path) -> dict[str, str]:
    return {
        name: value.strip('"')
        for word, rest in instructions(path)
        if word == "ARG"
        for name, _, value in [rest.partition("=")]
    }


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], text)


def built() -> dict[str, Any]:
    """What compose builds, by service."""
    services: dict[str, Any] = {}
    for name in ("docker-compose.yml", "trainer-images.yml"):
        services |= yaml.safe_load((DEPLOY / name).read_text())["services"]
    return {name: service for name, service in services.items() if "build" in service}


def constraint_files(path: Path) -> list[Path]:
    """What a Dockerfile copies of constraints/."""
    copied = [word for kind, rest in instructions(path) if kind == "COPY" for word in rest.split()[:-1]]
    return [ROOT / word for word in copied if word.startswith("constraints/")]


def pins(*files: Path) -> dict[str, str]:
    lines = [line for file in files for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


@each_dockerfile
def test_hadolint_finds_nothing(tools: Tools, path: Path) -> None:
    tools.run("hadolint", path)
    assert not re.search(r"^# syntax=|@sha256:|<<E", path.read_text(), re.MULTILINE)


@each_dockerfile
def test_bases_have_a_version(path: Path) -> None:
    stages, bases = set(), []
    for word, rest in instructions(path):
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            bases += [] if base in stages else [filled(base, arguments(path))]
            stages.add(stage)
    assert bases
    for base in bases:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", base), base


@each_dockerfile
def test_it_runs_as_nobody(path: Path) -> None:
    words = [word for word, _ in instructions(path)]
    last = len(words) - words[::-1].index("FROM")
    users = [rest for word, rest in instructions(path)[last:] if word == "USER"]
    assert users and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


@each_dockerfile
def test_it_is_labelled_with_its_version(path: Path) -> None:
    labels = dict(
        re.findall(r'([\w.]+)="([^"]*)"', " ".join(rest for word, rest in instructions(path) if word == "LABEL"))
    )
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert arguments(path)["VERSION"] == VERSION


@each_dockerfile
def test_what_it_copies_is_there(path: Path) -> None:
    for word, rest in instructions(path):
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


def installs(path: Path) -> list[list[str]]:
    """The words behind each `pip install`, of the Dockerfile itself; `$pip` stands for it."""
    text = " && ".join(rest for word, rest in instructions(path) if word == "RUN")
    text = re.sub(r'(?:ARG )?pip="[^"]*"', "", text)
    found = re.findall(r"(?:\$pip|pip3? install|-m pip\b[^&;]*?\binstall)\s([^&;]*)", text)
    return [re.findall(r'"[^"]*"|\S+', words) for words in found]


@each_dockerfile
def test_nothing_is_installed_without_a_version(path: Path) -> None:
    allowed = pins(*constraint_files(path))
    for words in installs(path):
        named = [words[index + 1] for index, word in enumerate(words) if word == "-c"]
        assert named and {ROOT / name for name in named} <= set(constraint_files(path)), words
        wanted = [
            word.strip('"') for index, word in enumerate(words) if not word.startswith("-") and words[index - 1] != "-c"
        ]
        for requirement in map(Requirement, wanted):
            assert not requirement.specifier, f"{requirement}: its version belongs into constraints/"
            assert canonicalize_name(requirement.name) in allowed, requirement
    for word, rest in instructions(path):
        for packages in re.findall(r"apt-get install ((?:-\S+ )*)([^&;]*)", rest) if word == "RUN" else ():
            assert all("=" in package for package in packages[1].split()), packages


@each_dockerfile
def test_python_is_installed_by_the_common_script(path: Path) -> None:
    runs = " ".join(rest for word, rest in instructions(path) if word == "RUN")
    if path.parent.name == "redis":
        assert not re.search(r"pip|python", path.read_text()), "it has none"
        return
    script = f"{path.name.split('.')[0]}/install.sh" if path.parent.name == "engine-cpu" else "./install.sh "
    assert script in runs
    if script == "./install.sh ":
        packages = runs.split("./install.sh ")[1].split(" &&")[0].split()
        copied = {rest.split()[0] for word, rest in instructions(path) if word == "COPY" and not rest.startswith("--")}
        packages = [
            package for package in packages if package in ("contract", "cli") or package.startswith("services/")
        ]
        assert set(packages) == {name for name in copied if (ROOT / name / "pyproject.toml").exists()}
        assert ROOT / "constraints/services.txt" in constraint_files(path)


def test_the_common_script_takes_versions_from_all_that_is_copied() -> None:
    text = (IMAGES / "install.sh").read_text()
    assert "for file in constraints/*.txt" in text
    assert re.findall(r"^\$pip install (?!-q \$constraints)", text, re.MULTILINE) == []


def test_constraints_name_one_version_each() -> None:
    for file in (ROOT / "constraints/services.txt", ROOT / "constraints/gpu.txt"):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
        assert len(pins(file)) == len(lines), f"{file.name} names something twice"
    assert not pins(ROOT / "constraints/gpu.txt").keys() & pins(ROOT / "constraints/services.txt").keys()


@pytest.mark.parametrize("python", ["3.11.2", "3.11.14"])
def test_all_that_our_packages_require_has_a_version(python: str) -> None:
    required = runpy.run_path(str(ROOT / "scripts/image_wheels.py"))["required"](python=python)
    allowed = pins(ROOT / "constraints/services.txt")
    # A build of torch for CPU has a mark of its own behind its version.
    wrong = {name: version for name, version in required.items() if allowed.get(name) != version.split("+")[0]}
    assert wrong == {}
    assert {"torch", "scipy", "openai", "redis"} <= required.keys()


def test_compose_builds_each_and_no_other() -> None:
    files = {
        (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve()
        for service in built().values()
    }
    assert files == set(DOCKERFILES)


def test_an_image_has_the_name_of_its_label() -> None:
    for name, service in built().items():
        text = (ROOT / service["build"]["dockerfile"]).read_text()
        image = re.fullmatch(r"\$\{REGISTRY:-hintloop\}/([\w-]+):\$\{VERSION:-(.+)\}", service["image"])
        assert image and image[2] == VERSION, name
        assert f'title="hintloop/{image[1]}"' in text, name
