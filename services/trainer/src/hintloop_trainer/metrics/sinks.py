"""All places that the figures of each step go to, from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog
from hintloop_contract.config.schema import Config

from hintloop_trainer.metrics.jsonl import MetricsFile
from hintloop_trainer.metrics.prometheus import PrometheusSink
from hintloop_trainer.metrics.sink import Metrics, Sink
from hintloop_trainer.metrics.tensorboard import TensorboardSink
from hintloop_trainer.metrics.wandb_run import WandbSink


class Sinks:
    """Gives each step's figures to every sink. What cannot be written is logged; training goes on."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        """Give to ``sinks``, in order."""
        self._sinks = sinks
        self._log = structlog.get_logger()

    def begin(self, step: int) -> None:
        """Training goes on from ``step``: at the start, on resuming, and whenever it went back to older weights."""
        for sink in self._sinks:
            try:
                sink.begin(step)
            except OSError as error:
                self._warn(sink, error)

    def write(self, metrics: Metrics) -> None:
        """Give one step's figures to all."""
        for sink in self._sinks:
            try:
                sink.write(metrics)
            except OSError as error:
                self._warn(sink, error)

    def close(self) -> None:
        """Finish what is still to be written."""
        for sink in self._sinks:
            try:
                sink.close()
            except OSError as error:
                self._warn(sink, error)

    def _warn(self, sink: Sink, error: OSError) -> None:
        self._log.warning("metrics not written", sink=type(sink).__name__, detail=str(error))


def sinks_from(config: Config, run: str, prometheus: PrometheusSink) -> Sinks:
    """What the configuration asks for; ``prometheus`` is among them.

    Raises:
        ConfigError: a package that the configuration needs is not installed.
    """
    beside = config.training.checkpoint_dir.parent
    sinks: list[Sink] = [MetricsFile(beside / "metrics.jsonl", run), prometheus]
    if config.metrics.tensorboard:
        sinks.append(TensorboardSink(tensorboard_directory(config), run))
    if config.metrics.wandb_project:
        sinks.append(WandbSink(config, beside, run))
    return Sinks(sinks)


def tensorboard_directory(config: Config) -> Path:
    """Where event files are written."""
    return config.metrics.tensorboard_dir or config.training.checkpoint_dir.parent / "tensorboard"
