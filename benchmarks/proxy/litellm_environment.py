"""LiteLLM's own environment: built once from ``constraints/bench.txt`` in the user's cache, keyed by that recipe."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints" / "bench.txt"
#: Raised when what is below installs something else from the same file.
REVISION = 1


def ensure_litellm() -> Path:
    """The environment's folder; built when it is not there, which takes minutes."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hintloop" / "bench"
    recipe = hashlib.sha256(CONSTRAINTS.read_bytes() + bytes([REVISION])).hexdigest()[:12]
    folder = base / f"litellm-{recipe}"
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"litellm-{recipe}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            _build(folder)
    return folder


def _build(folder: Path) -> None:
    print(f"bench: installing LiteLLM into {folder} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = os.environ.get("HINTLOOP_PYTHON", "python3.11")
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile"]
    # The file lists everything, so nothing is left to resolve and nothing else can come in. Should some release of
    # Python need more, pip says so here, before it is imported.
    subprocess.run([*pip, "--no-deps", "-r", str(CONSTRAINTS)], check=True)
    subprocess.run([*pip[:3], "check"], check=True)
    # Without bytecode it would compile itself at every start and at first use, which is no measure of it.
    subprocess.run(
        [str(folder / "bin/python"), "-m", "compileall", "-q", "-j", "0", str(folder / "lib")],
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (folder / ".complete").touch()
