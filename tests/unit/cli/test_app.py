import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hintloop.app import main
from hintloop.commands import app
from hintloop.demo.options import DemoOptions, overlay
from hintloop.local import resolution
from hintloop_contract.config import load_config
from hintloop_contract.messages import Capture
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES
from typer.testing import CliRunner

REFERENCE = Path(__file__).parents[2] / "fixtures" / "reference-config"
SOURCES = ["--config", str(REFERENCE / "config.toml"), "--settings", str(REFERENCE / "settings.json")]


def hintloop(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hintloop", *arguments], capture_output=True, text=True, check=False)


def test_config_show_names_origins_and_masks_secrets() -> None:
    overlays = ["--overlay", str(REFERENCE / "topk-variant.toml")]
    result = CliRunner().invoke(app, ["config", "show", "--json", *SOURCES, *overlays])
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["advantage.estimator"] == {"value": "grpo", "origin": str(REFERENCE / "topk-variant.toml")}
    assert shown["opd.judge_vote_count"]["origin"] == str(REFERENCE / "settings.json")
    assert shown["training.seed"]["origin"] == "default"
    assert shown["prm.prm_api_key"]["value"] == "********"
    assert "sk-" not in result.stdout


def test_config_show_prints_one_key_a_line_where_there_is_no_terminal() -> None:
    result = CliRunner().invoke(app, ["config", "show", *SOURCES])
    assert f'rollout.engine = "sglang"  # {REFERENCE / "config.toml"}' in result.stdout.splitlines()


def test_a_key_that_the_call_sets_is_above_files_and_environment() -> None:
    environment = {"HINTLOOP_TRAINING__SEED": "6", "HINTLOOP_TRAINING__MAX_STEPS": "7"}
    sets = ["--set", "training.seed=8", "--set", "training.seed=9", "--set", "training.learning_rate=1e-4"]
    result = CliRunner().invoke(app, ["config", "show", "--json", *SOURCES, *sets], env=environment)
    shown = json.loads(result.stdout)
    assert shown["training.seed"] == {"value": 9, "origin": "flag"}
    assert shown["training.learning_rate"] == {"value": 1e-4, "origin": "flag"}
    assert shown["training.max_steps"] == {"value": 7, "origin": "environment"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["config", "show", "--set", "training.seed"], "--set 'training.seed' must be SECTION.KEY=VALUE"),
        (["config", "show", "--set", "training.sed=1"], "did you mean 'training.seed'"),
        (["up", "--set", "training.sed=1"], "did you mean 'training.seed'"),
        (["up", "--engine", "vllm", "--set", "rollout.engine=sglang"], "--set rollout.engine=sglang; give one of them"),
    ],
)
def test_a_wrong_key_of_the_call_is_refused(call: list[str], said: str, tmp_path: Path) -> None:
    more = ["--state-dir", str(tmp_path / "state")] if call[0] == "up" else []
    result = hintloop(*call, *more)
    assert result.returncode == 2
    assert said in result.stderr


def test_status_reads_settings_too(tmp_path: Path, redis_server: Any) -> None:
    config, settings = tmp_path / "config.toml", tmp_path / "settings.json"
    config.write_text(f'[redis]\nurl = "{redis_server.url}"\n')
    settings.write_text('{"policy": {"name": "of-settings"}}')

    async def drop_one() -> None:
        broker = RedisBroker(connect(redis_server.url), "of-settings")
        await broker.append(
            CAPTURES, Capture(turn_id="t", engine="vllm", engine_url="", request=b"", start_ms=0, end_ms=1)
        )
        await broker.close()

    asyncio.run(drop_one())
    called = ["status", "--json", "--state-dir", str(tmp_path), "--config", str(config)]
    shown = [
        json.loads(CliRunner().invoke(app, [*called, *more]).stdout) for more in ([], ["--settings", str(settings)])
    ]
    assert [one["funnel"]["captured"] for one in shown] == [0, 1]


def test_a_wrong_key_is_a_wrong_call(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[training]\nlearning_rat = 1e-6\n")
    result = hintloop("config", "show", "--config", str(path))
    assert result.returncode == 2
    assert "learning_rate" in result.stderr
    assert "Traceback" not in result.stderr


def test_status_without_a_stack_says_what_to_do(tmp_path: Path) -> None:
    result = hintloop("status", "--state-dir", str(tmp_path))
    assert result.returncode == 2
    assert "hintloop up" in result.stderr


def test_demo_refuses_a_wrong_prompts_file_before_anything_is_started(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is rain?"}\n')
    state = tmp_path / "state"
    result = hintloop("demo", "--eval-prompts", str(prompts), "--state-dir", str(state))
    assert result.returncode == 2
    assert "line 1" in result.stderr
    assert "topic" in result.stderr
    assert not state.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--steps", "0"], "--steps"),
        (["--steps", "-1"], "--steps"),
        (["--steps", "99999999999999"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--method", "foo"], "'opd'"),
        (["--engine", "foo"], "'sglang'"),
        (["--seed", "-1"], "--seed"),
        (["--step-timeout", "inf"], "--step-timeout"),
        (["--eval-prompts", "/nowhere.jsonl"], "no such file"),
    ],
)
def test_a_wrong_option_is_a_wrong_call_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("the stack was started")

    monkeypatch.setattr("hintloop.demo.run.started", start)
    monkeypatch.setattr("sys.argv", ["hintloop", "demo", "--state-dir", str(tmp_path / "state"), *arguments])
    errors = io.StringIO()
    monkeypatch.setattr("sys.stderr", errors)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert named in errors.getvalue()
    assert not (tmp_path / "state").exists()


def test_status_of_a_stopped_stack_says_that_nothing_runs_and_how_to_start_it(tmp_path: Path) -> None:
    for owner in ("up", "demo"):
        state = tmp_path / owner
        state.mkdir()
        (state / ".hintloop-state").write_text(f"{owner}\n")
        (state / "config.toml").write_text(f'[redis]\nurl = "unix://{state}/redis.sock"\n')
        result = hintloop("status", "--state-dir", str(state))
        assert result.returncode == 2
        assert "nothing runs" in result.stderr
        assert f"hintloop {owner} --state-dir {state}" in result.stderr


@pytest.mark.parametrize(
    ("method", "estimator", "loss"),
    [
        ("opd", "on_policy_distillation", None),
        ("binary", "grpo", None),
        ("combine", "combine", None),
        ("topk", "grpo", "openclaw_opd/losses/topk_reverse_kl.py"),
    ],
)
def test_the_recipe_of_each_method_is_a_valid_configuration(
    tmp_path: Path, method: str, estimator: str, loss: str | None
) -> None:
    path = tmp_path / "recipe.toml"
    resolution.write(path, overlay(DemoOptions(method=method)))  # type: ignore[arg-type]
    config = load_config([path], environ={}).config
    assert (config.advantage.estimator, config.custom_loss) == (estimator, loss)
    assert config.training.train_batch_size == config.rollout.rollout_batch_size == 16
    assert config.prm.judge_backend == "rules"


def test_setup_time_counts_from_where_make_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINTLOOP_STARTED_AT", "1700000000")
    assert DemoOptions().started == 1700000000.0
    monkeypatch.setenv("HINTLOOP_STARTED_AT", "soon")
    assert DemoOptions().started > 1700000000.0
