"""Causes that the doctor finds by itself: of refusals, of distributions, of scores, of the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hintloop.commands import app
from hintloop.doctor import show, stations
from hintloop.doctor.checks import agreement, configuration, loss, serving
from hintloop.doctor.checks.refused import cause_of
from hintloop.doctor.finding import Outcome, fail, ok
from hintloop.doctor.look import Look, looking
from hintloop.doctor.stations import Visit
from hintloop.funnel import Snapshot
from hintloop_contract.broker import WeightsState
from hintloop_contract.config import load_config
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import ConfigError
from typer.testing import CliRunner

from .test_doctor import causes, findings_of, student, write_config


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[opd]\nteacher_scoring_mode = 'generate'", Cause.GENERATED_SCORING),
        ("[training]\nkl_coef = 0.05", Cause.KL_IN_OPD),
        ("[training]\nlearning_rate = 0", Cause.LEARNING_RATE_ZERO),
        ("[training]\nlearning_rate = -0.0", Cause.LEARNING_RATE_ZERO),
        ("[training]\nlearning_rate = 'fast'", Cause.CONFIGURATION_INVALID),
        ("[training]\nmax_staleness_steps = 0", Cause.SAMPLES_STALE),
        ("[rollout]\nrollout_batch_size = 512", Cause.SAMPLES_STALE),
        ("[training]\nuse_custom_loss = true", Cause.CUSTOM_LOSS_MISSING),
        ("[training]\nlearning_rat = 1", Cause.CONFIGURATION_INVALID),
    ],
)
def test_a_refused_key_names_its_cause(tmp_path: Path, text: str, cause: Cause) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config([write_config(tmp_path, text)], environ={})
    assert cause_of(str(refused.value)) is cause


LOSS = "[advantage]\nestimator = 'grpo'\ncustom_loss_function_path = 'mine.py'\n"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (None, Cause.CUSTOM_LOSS_MISSING),
        ("REQUIRES = {'teacher_logprobs'}\n", None),
        ("def loss(inputs): ...\n", Cause.COMPUTE_LOSS_MISSING),
        ("from elsewhere import compute_loss\n", Cause.CUSTOM_LOSS_UNUSABLE),
        ("def compute_loss(inputs): ...\n", Cause.CUSTOM_LOSS_UNUSABLE),
        ("def compute_loss(\n", Cause.CUSTOM_LOSS_UNUSABLE),
    ],
)
async def test_a_custom_losss_file_without_running_it(tmp_path: Path, source: str | None, cause: Cause | None) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    found = [cause for _, cause in causes(await findings_of(configuration.check, tmp_path, LOSS))]
    assert found[0] is cause


BODY = "from hintloop_trainer.losses.inputs import TokenLosses\nREQUIRES = {'teacher_logprobs'}\n"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (
            "def compute_loss(i):\n    return TokenLosses(-i.advantages_N * (i.logprobs_N - i.old_logprobs_N).exp())",
            None,
        ),
        ("def compute_loss(i):\n    return TokenLosses(-i.logprobs_N)", Cause.LOSS_IGNORES_TEACHER),
        ("def compute_loss(i):\n    return TokenLosses(i.advantages_N * i.logprobs_N * 0)", Cause.LOSS_MASK_ZERO),
        ("", Cause.COMPUTE_LOSS_MISSING),
        ("def compute_loss(a, b): ...", Cause.COMPUTE_LOSS_MISSING),
        ("compute_loss = lambda i: 1 / 0", Cause.CUSTOM_LOSS_UNUSABLE),
    ],
)
async def test_a_custom_loss_on_made_up_tokens(tmp_path: Path, source: str, cause: Cause | None) -> None:
    (tmp_path / "mine.py").write_text(BODY + source)
    text = LOSS + student(tmp_path, layers=1, hidden=64)
    (finding,) = [one for one in await findings_of(loss.check, tmp_path, text) if one.check == "loss"]
    assert finding.cause is cause, finding.seen
    assert finding.outcome is (Outcome.OK if cause is None else Outcome.FAIL)


@pytest.mark.parametrize(("cap", "cause"), [(2.0, None), (0.001, Cause.LOSS_MASK_ZERO)])
async def test_importance_weights_that_let_no_token_count(tmp_path: Path, cap: float, cause: Cause | None) -> None:
    text = student(tmp_path, layers=1, hidden=64) + f"\n[training]\nis_correction = 'mask'\ntis_cap = {cap}"
    (finding,) = [one for one in await findings_of(loss.check, tmp_path, text) if one.check == "loss"]
    assert finding.cause is cause, finding.seen


async def test_of_a_running_trainer_only_what_never_fits_is_said(tmp_path: Path) -> None:
    running = Snapshot(trainer={"phase": "collecting", "step": "3"})
    for layers, outcome in ((20_000, Outcome.FAIL), (1, Outcome.OK)):
        text = student(tmp_path, layers=layers, hidden=4096)
        (memory,) = [f for f in await findings_of(loss.check, tmp_path, text, running) if f.check == "memory"]
        assert (memory.outcome, memory.cause is Cause.MEMORY_SHORT) == (outcome, outcome is Outcome.FAIL), memory.seen


def places(temperature: float, noise: float = 0.0) -> list[dict[int, float]]:
    random = np.random.default_rng(3)
    rows = []
    for _ in range(12):
        logits = random.normal(size=8) * 2
        other = np.random.default_rng(int(logits[0] * 1e6) % 2**32).normal(size=8)
        logprobs = (logits + noise * other) / temperature
        logprobs -= np.log(np.exp(logprobs).sum())
        rows.append(dict(enumerate(logprobs.tolist())))
    return rows


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_the_slope_between_two_distributions_is_the_ratio_of_temperatures(temperature: float) -> None:
    found = agreement.slope(zip(places(1.0), places(temperature), strict=True))
    assert found is not None and found == (pytest.approx(1 / temperature), pytest.approx(1.0))


def test_other_weights_scatter_and_nothing_is_said() -> None:
    found = agreement.slope(zip(places(1.0), places(0.6, noise=2.0), strict=True))
    assert found is not None and found[1] < agreement.FIT
    assert agreement.slope([({1: -1.0, 2: -2.0}, {1: -1.0, 2: -2.0})]) is None, "two candidates are too few"


def note(root: Path, version: int, scores: list[float]) -> None:
    (root / str(version)).mkdir(parents=True)
    document = {"version": version, "probe_ids": list(range(len(scores) + 1)), "probe_scores": scores}
    (root / str(version) / serving.NOTE).write_text(json.dumps(document))


BASE, OLD, NEW = ([-1.0 + shift] * 8 for shift in (0.0, 0.05, 0.1))


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each engine says of the probe, and of its version; the test fills it."""
    given: dict[str, Any] = {}

    async def says(self: Any) -> str | None:
        version: str | None = given.get(f"{self.url} says", "8")
        return version

    async def score(self: Any, ids: list[int]) -> Any:
        assert len(ids) == 9
        return np.asarray(given[self.url], dtype=np.float32)

    monkeypatch.setattr(serving.PolicyEngine, "score", score)
    monkeypatch.setattr(serving.PolicyEngine, "says", says)
    monkeypatch.setattr(serving.PolicyEngine, "__init__", lambda self, look, url: setattr(self, "url", url))
    return given


async def scored(tmp_path: Path, dtype: str = "float32") -> list[tuple[str, Cause | None]]:
    for version, scores in ((7, OLD), (8, NEW)):
        note(tmp_path / "weights", version, scores)
    (tmp_path / serving.REFERENCE).write_text(json.dumps({"ids": list(range(9)), "logprobs": BASE}))
    text = (
        f"[publishing]\nweights_dir = '{tmp_path}/weights'\n[training]\ncheckpoint_dir = '{tmp_path}/checkpoints'\n"
        f"[model]\ndtype = '{dtype}'\n[policy]\nengines = ['http://a', 'http://b']"
    )
    async with looking(load_config([write_config(tmp_path, text)], environ={})) as look:
        look.snapshot, look.teacher = Snapshot(weights=WeightsState(8)), object()  # type: ignore[assignment]

        async def weights() -> WeightsState:
            return WeightsState(8)

        look.broker.weights = weights  # type: ignore[method-assign]
        try:
            found = await serving.scores(look)
        finally:
            look.teacher = None
    return causes(found)


@pytest.mark.parametrize(
    ("theirs", "says", "expected"),
    [
        (NEW, "8", ("ok", None)),
        (NEW, None, ("ok", None)),
        (NEW, "7", ("fail", Cause.ENGINE_BEHIND)),
        (OLD, "8", ("fail", Cause.ENGINE_BEHIND)),
        (BASE, "8", ("fail", Cause.ENGINE_AT_BASE)),
        (BASE, "default", ("fail", Cause.ENGINE_AT_BASE)),
        (BASE, "1", ("fail", Cause.ENGINE_BEHIND)),
        ([-3.0] * 8, "8", ("fail", Cause.ENGINE_BEHIND)),
        ([-1.0] * 5, "8", ("fail", Cause.ENGINE_BEHIND)),
    ],
)
async def test_what_an_engine_serves_is_told_by_its_scores(
    tmp_path: Path, serves: dict[str, Any], theirs: list[float], says: str | None, expected: Any
) -> None:
    serves.update({"http://a": NEW, "http://b": theirs, "http://b says": says})
    assert await scored(tmp_path) == [("ok", None), expected]


async def test_old_weights_within_the_tolerance_are_told_by_what_they_are_near(
    tmp_path: Path, serves: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(serving.TOLERANCES, "bfloat16", 1.0)
    serves.update({"http://a": NEW, "http://b": OLD})
    assert await scored(tmp_path, "bfloat16") == [("ok", None), ("fail", Cause.ENGINE_BEHIND)]


def test_a_plain_report_is_one_fenced_text(tmp_path: Path) -> None:
    visits = [Visit("judge", [ok("votes", "all"), fail("hints", "none\x1b[2J", Cause.NO_HINTS, [{"hint": "a"}])], 0.1)]
    config = load_config(
        [write_config(tmp_path, "[model]\nstudent_model_path = '/secret/place/smol'")], environ={}
    ).config
    text = show.plain(visits, show.header(config))
    assert text.startswith("```\nhintloop doctor\n") and text.endswith("```")
    assert "student: smol (bfloat16" in text and "/secret/place" not in text
    assert "Mend first: no_hints." in text and "\x1b" not in text


def test_the_configuration_alone_contacts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(_: Look) -> list[Any]:
        return [ok("loss", "read")]

    chain = [replace(one, check=told) if one.name == "loss" else one for one in stations.STATIONS]
    monkeypatch.setattr(stations, "STATIONS", chain)
    text = student(tmp_path, layers=1, hidden=64)
    (tmp_path / "tokenizer.json").write_text("{}")
    path = write_config(tmp_path, text + "\n[opd]\njudge_vote_count = 1")
    arguments = ["doctor", "--config-only", "--json", "--config", str(path), "--state-dir", str(tmp_path / "s")]
    result = CliRunner().invoke(app, arguments)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["first_cause"]) == (0, None)
    outcomes = {found["station"]: found["findings"][0]["outcome"] for found in document["stations"]}
    assert {name for name, outcome in outcomes.items() if outcome != "skipped"} == {"configuration", "loss"}


def test_publishing_contacts_something(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--config-only", "--active", "--state-dir", str(tmp_path)])
    assert "--active publishes" in str(result.exception)


def test_a_key_given_by_itself_is_looked_at(tmp_path: Path) -> None:
    arguments = ["doctor", "--config-only", "--only", "configuration", "--json", "--state-dir", str(tmp_path)]
    extraction = ["--set", "opd.enable_hint_extraction=false", "--set", "advantage.estimator=on_policy_distillation"]
    result = CliRunner().invoke(app, [*arguments, *extraction])
    (visit,) = json.loads(result.stdout)["stations"]
    assert "hints_switched_off" in [finding["cause"] for finding in visit["findings"]]
    result = CliRunner().invoke(app, [*arguments, "--set", "opd.no_such_key=1"])
    assert json.loads(result.stdout)["first_cause"] == "configuration_invalid"
