from pathlib import Path

import pytest
from hintloop_contract.config import load_config
from hintloop_contract.config.arguments import parse_arguments
from hintloop_contract.errors import ConfigError

REFERENCE = Path(__file__).parents[2] / "fixtures" / "reference-config"
CONFIG, SETTINGS, TOPK = (REFERENCE / name for name in ("config.toml", "settings.json", "topk-variant.toml"))


def load(*files: Path, environ=None, flags=None, settings=()):
    return load_config(files, settings=settings, environ=environ or {}, flags=flags)


def write(folder: Path, text: str, name: str = "config.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_reference_files_load_unchanged():
    config = load(CONFIG, settings=[SETTINGS]).config
    assert config.model.student_model_path == "/path/to/your/student-model"
    assert config.rollout.rollout_batch_size == 32
    assert config.training.learning_rate == 1e-6
    assert config.advantage.estimator == "on_policy_distillation"
    assert config.prm.base_url == "https://prm.example/api/v1"
    assert config.opd.judge_vote_count == 3
    assert config.engine_urls == ["http://127.0.0.1:30000"]
    assert config.custom_loss is None


def test_topk_overlay_sets_the_custom_loss_though_settings_say_false_and_null():
    loaded = load(CONFIG, TOPK, settings=[SETTINGS])
    assert loaded.config.custom_loss == "openclaw_opd/losses/topk_reverse_kl.py"
    assert loaded.config.advantage.estimator == "grpo"
    assert loaded.config.topk_opd.top_k == 64
    assert loaded.origins["advantage.estimator"] == str(TOPK)


def test_precedence(tmp_path):
    base = write(
        tmp_path, "[training]\nseed = 1\nlearning_rate = 1e-3\n[opd]\nadvantage_clip = 1.0\njudge_vote_count = 1\n"
    )
    settings = write(
        tmp_path, '{"training": {"seed": 2}, "opd": {"advantage_clip": 2.0, "judge_vote_count": 2}}', "s.json"
    )
    first = write(tmp_path, "[opd]\nadvantage_clip = 3.0\njudge_vote_count = 3\n", "first.toml")
    last = write(tmp_path, "[opd]\nadvantage_clip = 4.0\n", "last.toml")
    environ = {"HINTLOOP_OPD__JUDGE_VOTE_COUNT": "5", "HINTLOOP_TRAINING__SEED": "6"}
    loaded = load_config([base, first, last], settings=[settings], environ=environ, flags={"training.seed": "7"})
    config = loaded.config
    assert (config.opd.advantage_clip, config.opd.judge_vote_count, config.training.seed) == (4.0, 5, 7)
    assert config.training.learning_rate == 1e-3
    assert loaded.origins["training.seed"] == "flag"
    assert loaded.origins["opd.judge_vote_count"] == "environment"
    assert loaded.origins["opd.advantage_clip"] == str(last)


def test_lists_replace_and_null_unsets(tmp_path):
    base = write(tmp_path, '[policy]\nengines = ["http://a:1", "http://b:2"]\n')
    environ = {"HINTLOOP_POLICY__ENGINES": '["http://c:3"]', "HINTLOOP_TRAINING__TIS_CAP": "null"}
    config = load(base, environ=environ).config
    assert config.policy.engines == ["http://c:3"]
    assert config.training.tis_cap is None


def test_variables_are_filled_in_and_a_missing_one_is_named(tmp_path):
    base = write(tmp_path, '[prm]\nprm_api_key = "${PRM_KEY}"\n')
    assert load(base, environ={"PRM_KEY": "sk-1"}).config.prm.prm_api_key.get_secret_value() == "sk-1"
    with pytest.raises(ConfigError, match="PRM_KEY is not set"):
        load(base)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nlearnin_rate = 1.0\n", "did you mean 'training.learning_rate'"),
        ("[rollout]\ntop_k = 5\n", "did you mean 'topk_opd.top_k'"),
        ("[training]\ntemperture = 1.0\n", "did you mean 'rollout.temperature'"),
        ("[rollout]\nMAX_NEW_TOKENS = 9\n", "did you mean 'rollout.max_new_tokens'"),
        ("[trainin]\n", "did you mean 'training'"),
        ("seed = 3\n", "stands outside a section"),
        ("[training\n", "is not valid"),
        ("[rollout]\npassive_mode = false\n", "there is no active rollout|has no active rollout"),
        ("[advantage]\ngamma = 0.9\n", "nothing to discount"),
        ("[advantage]\nlam = 0.9\n", "no value model"),
        ('[opd]\nteacher_scoring_mode = "generate"\n', "'generate' is refused"),
        ("[training]\nkl_coef = 0.1\n", "refused under on_policy_distillation"),
        ("[training]\nuse_custom_loss = true\n", "no path is set"),
        ('[training]\ncustom_loss_path = "a.py"\n[advantage]\ncustom_loss_function_path = "b.py"\n', "differ"),
        ('[training]\nuse_custom_loss = false\ncustom_loss_path = "a.py"\n', "set use_custom_loss = true"),
        ("[training]\ntrain_batch_size = 5\n", "not a multiple"),
        ("[training]\nmax_staleness_steps = 1\n", "no collection could ever fill"),
        ('[opd]\nhint_format = "no place"\n', r"must contain \{hint\} exactly once"),
        ("[opd]\nmin_hint_length = 9\nmax_hint_length = 8\n", "no hint could pass"),
        ('[prm]\nprm_url = "prm.example"\n', "is not an http"),
        ('[policy]\nengines = ["x"]\n', "is not an http"),
        ('[model]\ndtype = "float8"\n', "float32"),
        ("[training]\nlearning_rate = 0\n", "training.learning_rate = 0"),
        ("training = 3\n", "outside a section"),
    ],
)
def test_a_wrong_value_says_what_and_how_to_mend_it(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text))


def test_forced_reference_kl_is_accepted(tmp_path):
    assert load(write(tmp_path, "[training]\nkl_coef = 0.1\nforce_kl = true\n")).config.training.kl_coef == 0.1


def test_a_path_alone_is_enough(tmp_path):
    assert load(write(tmp_path, '[training]\ncustom_loss_path = "a.py"\n')).config.custom_loss == "a.py"


def test_all_unknown_keys_are_named_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "[training]\na = 1\nb = 2\n"))
    assert "training.a" in str(caught.value)
    assert "training.b" in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="absent.toml"):
        load(tmp_path / "absent.toml")


def test_secrets_are_masked_and_never_in_errors(tmp_path):
    base = write(
        tmp_path, '[prm]\nprm_api_key = "sk-secret"\n[proxy]\napi_keys = ["key-1"]\n[redis]\nurl = "redis://:pw@h:1"\n'
    )
    shown = "\n".join(f"{key} = {value}" for key, value, _ in load(base).rows())
    assert "********" in shown
    for secret in ("sk-secret", "key-1", "pw@"):
        assert secret not in shown
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, '[prm]\nprm_api_key = ["sk-secret"]\n'))
    assert "sk-secret" not in str(caught.value)


def test_prm_address_with_and_without_v1(tmp_path):
    for address in ("http://h:1", "http://h:1/", "http://h:1/v1"):
        config = load(write(tmp_path, f'[prm]\nprm_url = "{address}"\n')).config
        assert config.prm.base_url == "http://h:1/v1"
        assert config.prm.root_url == "http://h:1"


def test_arguments_end_the_process_with_every_problem(tmp_path, capsys):
    path = write(tmp_path, "[training]\nnonsense = 1\n")
    with pytest.raises(SystemExit) as caught:
        parse_arguments("service", ["--config", str(path)])
    assert caught.value.code == 2
    assert "training.nonsense" in capsys.readouterr().err


def test_arguments_take_overlays_and_flags():
    arguments = [
        "--config",
        str(CONFIG),
        "--config",
        str(TOPK),
        "--settings",
        str(SETTINGS),
        "--set",
        "training.seed=9",
    ]
    config = parse_arguments("service", arguments).config
    assert (config.training.seed, config.advantage.estimator) == (9, "grpo")


def test_a_word_without_a_value_ends_the_process(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments("service", ["--set", "training.seed"])
    assert caught.value.code == 2
    assert "service: --set 'training.seed' must be SECTION.KEY=VALUE" in capsys.readouterr().err


def test_every_key_is_documented():
    from hintloop_contract.config import Config

    undocumented = [
        f"{section}.{name}"
        for section, field in Config.model_fields.items()
        for name, key in field.annotation.model_fields.items()
        if not key.description
    ]
    assert undocumented == []


def test_tables_inside_a_section_are_shown_set_by_flag_and_checked(tmp_path):
    base = write(tmp_path, '[prm.rules.tools."mcp__*"]\nignore = true\n')
    rows = dict((path, value) for path, value, _ in load(base).rows())
    assert '"mcp__*": {"ignore": true' in rows["prm.rules"]
    flag = {"prm.rules": '{"tools": {"bash": {"neutral_exit_codes": [1]}}}'}
    assert load(flags=flag).config.prm.rules.tools["bash"].neutral_exit_codes == [1]
    wrong = write(tmp_path, "[prm.rules.tools.bash]\nsucces_exit_codes = [0]\n", "wrong.toml")
    with pytest.raises(ConfigError) as refused:
        load(wrong)
    assert str(refused.value) == (
        f"{wrong}: unknown key 'prm.rules.tools.bash.succes_exit_codes'; did you mean 'success_exit_codes'?"
    )


def test_adapters_do_not_go_by_process_group(tmp_path):
    text = '[lora]\nenabled = true\n[publishing]\ntransport = "process_group"\n'
    with pytest.raises(ConfigError, match="set transport = 'disk', or lora.publish = 'merged'"):
        load(write(tmp_path, text))
    assert load(write(tmp_path, text.replace("true", 'true\npublish = "merged"'))).config.lora.publish == "merged"
