"""What `make` runs: read from a dry run, so nothing is installed or started."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def make(*arguments: str, folder: Path = ROOT) -> str:
    # What an outer make passes on would change what this one does and prints.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def dry(*arguments: str) -> str:
    return make("-n", *arguments)


@pytest.mark.parametrize("target", ["up", "demo"])
def test_an_engine_is_named_only_when_the_user_names_one(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE", raising=False)
    assert "--engine" not in dry(target)
    assert f"hintloop {target} --engine sglang" in dry(target, "ENGINE=sglang")


def test_the_demo_prepares_the_engines_that_it_starts() -> None:
    assert dry("demo", "ENGINE=").splitlines()[0].split() == ["scripts/prepare.sh", "vllm"]
    assert dry("demo", "ENGINE=sglang").splitlines()[0].split() == ["scripts/prepare.sh", "vllm", "sglang"]


def test_clean_keeps_what_a_deployment_learned(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for kept in (".hintloop/checkpoints", ".hintloop/redis", ".hintloop/demo"):
        (tmp_path / kept).mkdir(parents=True)
    make("clean", folder=tmp_path)
    assert sorted(entry.name for entry in (tmp_path / ".hintloop").iterdir()) == ["checkpoints", "redis"]
