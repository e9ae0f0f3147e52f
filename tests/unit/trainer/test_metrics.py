"""Where the figures of a step go: what each place holds afterwards, read as its users read it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
import structlog
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_trainer.metrics import serving, wandb_run
from hintloop_trainer.metrics.jsonl import MetricsFile, surviving
from hintloop_trainer.metrics.prometheus import PrometheusSink
from hintloop_trainer.metrics.sinks import sinks_from
from prometheus_client.parser import text_string_to_metric_families
from tensorboardX.proto.event_pb2 import Event, SessionLog

STEP: dict[str, Any] = {
    "step": 1,
    "loss": -0.5,
    "samples": 4,
    "tokens_read": 30,
    "tokens_trained": 12,
    "effective_estimator": "grpo",
    "effective_learning_rate": 1e-3,
    "effective_tis_cap": None,
    "seconds_forward_backward": 2.0,
    "seconds_publish": 0.5,
    "dropped_too_long": 3,
    "my metric/1": 7.0,
}


def config(folder: Path, **metrics: Any) -> Config:
    return Config.model_validate({"training": {"checkpoint_dir": folder / "checkpoints"}, "metrics": metrics})


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_lines_of_lost_steps_are_told_apart_from_those_that_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, "run-1")
    first.begin(0)
    for step in range(1, 5):
        first.write({"step": step, "loss": 1.0})
    # Killed in the middle of a line; the last checkpoint was that of step 2.
    path.write_text(path.read_text() + '{"step": 5, "lo')
    second = MetricsFile(path, "run-2")
    second.begin(2)
    second.write({"step": 3, "loss": 2.0})
    # And back to older weights within the run, to the very step that it began with.
    second.begin(2)
    second.write({"step": 3, "loss": 3.0})

    found = surviving(lines(path))
    assert [(line["step"], line["loss"], line["run"]) for line in found] == [
        (1, 1.0, "run-1"),
        (2, 1.0, "run-1"),
        (3, 3.0, "run-2"),
    ]
    whole = [line for line in lines(path) if line != '{"step": 5, "lo']
    assert [json.loads(line)["step"] for line in whole] == [1, 2, 3, 4, 3, 3]


def test_a_run_from_the_start_voids_what_a_run_without_a_checkpoint_left(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for run in ("run-1", "run-2"):
        file = MetricsFile(path, run)
        file.begin(0)
        file.write({"step": 1})
    assert [line["run"] for line in surviving(lines(path))] == ["run-2"]


def test_figures_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path, "run").write({"step": 1, "loss": float("nan"), "ratio_max": float("inf"), "words": "ok"})
    (line,) = [json.loads(text, parse_constant=pytest.fail) for text in lines(path)]
    assert (line["loss"], line["ratio_max"], line["words"]) == (None, None, "ok")


async def served(sink: PrometheusSink) -> str:
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        task = asyncio.create_task(serving.serve(sink.registry, listening, stop))
        async with aiohttp.ClientSession() as session:
            for _ in range(100):
                try:
                    async with session.get(f"{address}/health") as health:
                        assert await health.json() == {"status": "ok"}
                    break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.02)
            async with session.get(f"{address}/metrics") as answer:
                text = await answer.text()
        stop.set()
        await task
    return text


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(value for name, value in sample.labels.items() if name != "le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_prometheus_shows_the_last_step_and_counts_over_the_run() -> None:
    sink = PrometheusSink()
    sink.write(STEP)
    sink.write({"step": 2, "loss": 0.25, "samples": 2, "tokens_read": 10, "tokens_trained": 5, "seconds_publish": 1.0})
    found = samples(await served(sink))
    assert found["hintloop_trainer_loss", ()] == 0.25
    assert found["hintloop_trainer_steps_total", ()] == 2
    assert found["hintloop_trainer_samples_trained_total", ()] == 6
    assert found["hintloop_trainer_tokens_total", ("read",)] == 40
    assert found["hintloop_trainer_step_seconds_sum", ()] == 3.5
    assert found["hintloop_trainer_phase_seconds", ("publish",)] == 1.0
    # What the second step did not have is not shown as if it had.
    assert ("hintloop_trainer_phase_seconds", ("forward_backward",)) not in found
    assert ("hintloop_trainer_my_metric_1", ()) not in found


async def test_prometheus_has_labels_for_reasons_and_coefficients() -> None:
    sink = PrometheusSink()
    sink.write(STEP)
    found = samples(await served(sink))
    assert found["hintloop_trainer_dropped", ("too_long",)] == 3
    assert found["hintloop_trainer_effective", ("learning_rate",)] == 1e-3
    assert found["hintloop_trainer_my_metric_1", ()] == 7.0
    assert found["hintloop_trainer_method_info", ("grpo",)] == 1


async def test_no_figure_of_a_loss_takes_the_name_of_another() -> None:
    sink = PrometheusSink()
    sink.write({"step": 1, "my metric": 1.0, "my_metric": 2.0, "my\nmetric": 3.0, "dropped": 4.0, "seconds_x": 5.0})
    text = await served(sink)
    named = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
    found = samples(text)
    shown = ("my_metric", "custom_my_metric", "custom_custom_my_metric", "custom_dropped")
    assert [found[f"hintloop_trainer_{name}", ()] for name in shown] == [1.0, 2.0, 3.0, 4.0]
    assert found["hintloop_trainer_phase_seconds", ("x",)] == 5.0


def events(directory: Path) -> Iterator[Event]:
    """TFRecords: length, its checksum, data, its checksum."""
    for path in sorted(directory.glob("events.out.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length


def scalars(directory: Path) -> list[tuple[str, int, float]]:
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(directory)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_tensorboard_gets_every_number_and_forgets_lost_steps(tmp_path: Path, elsewhere: bool) -> None:
    directory = tmp_path / ("board" if elsewhere else "tensorboard")
    given = {"tensorboard_dir": directory} if elsewhere else {}
    sinks = sinks_from(config(tmp_path, **given), "run", PrometheusSink())
    sinks.begin(0)
    sinks.write(STEP)
    sinks.write({**STEP, "step": 2})
    # Back to the weights of step 1, and on from there.
    sinks.begin(1)
    sinks.write({**STEP, "step": 2, "loss": 0.5})
    sinks.close()
    found = scalars(directory)
    assert [item for item in found if item[0] == "loss/loss"] == [
        ("loss/loss", 1, -0.5),
        ("loss/loss", 2, -0.5),
        ("loss/loss", 2, 0.5),
    ]
    assert ("seconds/seconds_publish", 1, 0.5) in found
    starts = [event.step for event in events(directory) if event.session_log.status == SessionLog.START]
    assert starts == [1, 2]


def test_tensorboard_can_be_left_out(tmp_path: Path) -> None:
    sinks = sinks_from(config(tmp_path, tensorboard=False), "run", PrometheusSink())
    sinks.begin(0)
    sinks.write(STEP)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_cannot_be_written_is_said_and_the_others_get_it(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("not a directory")
    prometheus = PrometheusSink()
    sinks = sinks_from(config(tmp_path), "run", prometheus)
    with structlog.testing.capture_logs() as logs:
        sinks.begin(0)
        sinks.write(STEP)
        sinks.close()
    assert [entry["sink"] for entry in logs] == ["TensorboardSink"]
    assert len(lines(tmp_path / "metrics.jsonl")) == 1
    assert prometheus.registry.get_sample_value("hintloop_trainer_steps_total") == 1


def test_wandb_that_is_not_installed_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(wandb_run, "PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(ConfigError, match=r"pip install 'hintloop-trainer\[wandb\]'"):
        wandb_run.require(config(tmp_path, wandb_project="mine"))
    wandb_run.require(config(tmp_path))


class FakeWandb(ModuleType):
    """The few calls of the package that are made, kept."""

    class Error(Exception):
        """As the package's."""

    def __init__(self) -> None:
        super().__init__("fake_wandb")
        self.__spec__ = __spec__
        self.started: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []
        self.broken = False
        self.finished = False

    def init(self, **settings: Any) -> FakeWandb:
        self.started = settings
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axis = (name, step_metric)

    def log(self, metrics: dict[str, Any]) -> None:
        if self.broken:
            raise self.Error("over")
        self.logged.append(metrics)

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_figures_and_no_secret(tmp_path: Path, monkeypatch: Any) -> None:
    package = FakeWandb()
    monkeypatch.setitem(sys.modules, "fake_wandb", package)
    monkeypatch.setattr(wandb_run, "PACKAGE", "fake_wandb")
    settings = config(tmp_path, wandb_project="mine", tensorboard=False)
    settings = settings.model_copy(update={"prm": settings.prm.model_copy(update={"prm_url": "http://private:1"})})
    sinks = sinks_from(settings, "run-7", PrometheusSink())
    sinks.begin(0)
    sinks.write(STEP)
    package.broken = True
    with structlog.testing.capture_logs() as logs:
        sinks.write({**STEP, "step": 2})
    sinks.close()
    assert (package.started["project"], package.started["id"], package.finished) == ("mine", "run-7", True)
    assert package.logged == [{name: value for name, value in STEP.items() if value is not None}]
    assert "private" not in json.dumps(package.started["config"])
    assert package.started["config"]["training"]["learning_rate"] == 1e-6
    assert [entry["detail"] for entry in logs] == ["over"]
    assert len(lines(tmp_path / "metrics.jsonl")) == 2
