"""Values that no service could work with are refused with the key, the value and the fix, never by a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hintloop_contract.config import load_config
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("prm.judge_url", '"http://engine:99999"', "none of 1 to 65535"),
        ("prm.judge_url", '"http://engine/v1?key=1"', "leave out ? and #"),
        ("policy.engines", '["http://engine:x"]', "none of 1 to 65535"),
        ("prm.grpc_address", '"engine:65536"', "write it as host:port"),
        ("prm.grpc_address", '"engine:\u00b2"', "write it as host:port"),
        ("prm.port", "65535", "set grpc_port"),
        ("prm.grpc_port", "18010", "one of them needs another"),
        ("prm.deadline_s", "inf", "finite"),
        ("proxy.engine_wait_s", "inf", "finite"),
        ("rollout.session_timeout_sec", "1e300", "less than or equal to 315360000"),
        ("prm.judge_cache_s", "1000000000000000000", "less than or equal to 315360000"),
        ("redis.turn_retention_s", "1000000000000000000", "less than or equal to 315360000"),
        ("linker.settle_ms", "1000000000000000000", "less than or equal to 315360000000"),
        ("training.lr_warmup_steps", "10000", "begins at a learning rate of 1e-10, which moves no weight"),
        ("training.engine", '"fsdp"', "Input should be 'megatron'"),
        ("training.sequence_parallel", "true", "set training.tensor_model_parallel_size above 1"),
        ("training.recompute_granularity", '"full"', "needs training.recompute_method"),
        ("training.recompute_num_layers", "2", "acts only with training.recompute_granularity full"),
        ("training.tis_floor", "0.5", "acts only with is_correction mask"),
        ("training.kl_estimator", '"k4"', "'k1', 'k2' or 'k3'"),
        ("training.entropy_coef", "-0.1", "greater than or equal to 0"),
        ("advantage.group_normalisation", "true", "refused under on_policy_distillation"),
        ("advantage.group_size", "4", "no effect without group_normalisation"),
        ("advantage.w_opd", "0.5", "no effect under estimator 'on_policy_distillation'"),
        ("training.seed", "9223372036854775808", "less than 2147483648"),
        ("training.seed", "-1", "greater than or equal to 0"),
        ("training.micro_batch_tokens", "0", "greater than or equal to 1"),
        ("training.kl_coef", "nan", "finite"),
        ("gate.seed", "4294967296", "less than 2147483648"),
        ("gate.max_new_tokens", "1000000000000", "less than or equal to 65536"),
        ("gate.answer_rate_drop", "1.5", "less than or equal to 1"),
        ("gate.length_ratio", "1.0", "greater than 1"),
        ("gate.base_factor", "0.5", "greater than or equal to 1"),
        ("gate.standard_errors", "nan", "finite"),
        ("gate.patience", "0", "greater than or equal to 1"),
        ("lora.rank", "1024", "less than or equal to 512"),
        ("lora.dropout", "0.1", "= 0.1: dropout is refused"),
        ("lora.target_modules", '["q_prj"]', "did you mean 'q_proj'"),
        ("lora.target_modules", '["k_proj", "k_proj"]', "k_proj is named twice"),
        ("lora.target_modules", "[]", "no layer would be trained"),
        ("lora.target_modules", '"all_linear"', "write 'all-linear'"),
        ("lora.target_modules", '"v_proj"', "write ['v_proj']"),
        ("prm.rules.tools.bash.failure_patterns", '[""]', "empty pattern"),
        ("prm.rules.tools.bash.success_exit_codes", "[true]", "true and false are no numbers"),
        ("training.train_batch_size", "true", "true and false are no numbers"),
        ("training.max_steps", "false", "true and false are no numbers"),
        ("training.learning_rate", "true", "true and false are no numbers"),
        ("gate.length_ratio", "true", "true and false are no numbers"),
        ("prm.grpc_port", "true", "true and false are no numbers"),
    ],
)
def test_a_value_is_refused_by_its_key(tmp_path: Path, path: str, value: str, said: str) -> None:
    section, _, key = path.partition(".")
    file = tmp_path / "config.toml"
    file.write_text(f"[{section}]\n{key} = {value}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config([file], environ={})
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{file}: {section}")


def test_adapters_go_by_disk_alone() -> None:
    sections = {"lora": {"enabled": True}, "publishing": {"transport": "process_group"}}
    with pytest.raises(ValidationError, match=r"lora\.publish = 'merged'"):
        Config.model_validate(sections)
    Config.model_validate({**sections, "lora": {"enabled": True, "publish": "merged"}})


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="no user or password") as caught:
        load_config(environ={"HINTLOOP_PRM__JUDGE_URL": "http://user:pass-word@engine/v1"})
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.json", "[" * 100_000),
        ("settings.json", '{"proxy": ' + '{"port": ' * 5000 + "1" + "}" * 5001),
        ("config.toml", "[proxy]\nport = " + "[" * 5000),
    ],
)
def test_a_file_that_nests_too_deep_is_refused_by_its_name(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{name}' is not valid"):
        load_config([file], environ={})


@pytest.mark.parametrize(
    "url", ["secret-word", "redis://:secret-word@host:x/0", "http://secret-word", "redis://h:99999"]
)
def test_an_address_that_is_no_redis_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="redis.url: it is no address of a Redis") as caught:
        load_config(environ={"HINTLOOP_REDIS__URL": url})
    assert "secret-word" not in str(caught.value)


def test_a_moving_average_of_weights_that_no_rank_has_whole_is_refused() -> None:
    sections = {
        "prm": {"teacher_source": "trainer", "teacher_weights": "ema"},
        "training": {"use_distributed_optimizer": True},
    }
    with pytest.raises(ValidationError, match="set use_distributed_optimizer = false"):
        Config.model_validate(sections)
    assert Config.model_validate({**sections, "model": {"dtype": "float32"}}).training.use_distributed_optimizer
