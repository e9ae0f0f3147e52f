"""One local stack for all faults: real Redis, two real engines, the real services."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RedisServer
from tests.faults.deployment import Deployment
from tests.integration.conftest import RunningEngine, serve

#: Steps that make the released weights other ones than the student's first.
FIRST_STEPS = 2


@pytest.fixture(scope="session")
def fault_folder() -> Iterator[Path]:
    """A folder whose path says nothing of this machine: reports name it."""
    folder = Path(tempfile.mkdtemp(prefix="hintloop-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def stack(vllm_policy: RunningEngine, fault_folder: Path) -> Iterator[Deployment]:
    """The stack, healthy, after some steps. The engine that other tests share is its PRM engine: nothing changes it."""
    model = fault_folder / "model"
    model.symlink_to(vllm_policy.model_dir)
    (fault_folder / "redis").mkdir()
    redis = RedisServer(fault_folder / "redis")
    redis.start()
    try:
        for policy in serve("vllm", vllm_policy.model_dir, fault_folder, context_tokens=1280):
            with Deployment(
                folder=fault_folder,
                policy_engine=policy.base_url,
                prm_engine=vllm_policy.base_url,
                model_dir=model,
                redis_url=redis.url,
            ) as deployment:
                deployment.train(FIRST_STEPS)
                yield deployment
    finally:
        redis.kill()
