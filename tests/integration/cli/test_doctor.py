"""Doctor before a real engine: it is fit to teach, and finds what a hint asks for likelier with the hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hintloop.doctor.checks import prm, teaching
from hintloop.doctor.look import looking
from hintloop_contract.config import load_config

pytestmark = pytest.mark.engine


async def test_a_real_engine_follows_the_hint(tmp_path: Path, vllm_policy: Any) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f"[model]\nstudent_model_path = '{vllm_policy.model_dir}'\ndtype = 'float32'\nmax_seq_len = 512\n"
        f"[rollout]\nengine = 'vllm'\n[policy]\nengines = ['{vllm_policy.base_url}']\n"
        f"[prm]\nprm_url = '{vllm_policy.base_url}'\n"
    )
    async with looking(load_config([path], environ={})) as look:
        findings = [*await prm.check_engine(look), *await teaching.check(look)]
    assert [(finding.check, str(finding.outcome)) for finding in findings] == [
        ("prm engine", "ok"),
        ("vocabulary", "ok"),
        ("rendering", "ok"),
        ("temperature", "ok"),
        ("teacher's context", "ok"),
        ("advantage without a hint", "ok"),
        ("advantage with a hint", "ok"),
    ]
    assert "both signs" in findings[-1].seen
