"""Figures of each step sent to Weights & Biases, where the package is installed; its key and mode are its own."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError

from hintloop_trainer.metrics.sink import Metrics

PACKAGE = "wandb"
#: What is shown of the configuration beside the curves; none of these sections holds a secret or an address.
SHOWN_SECTIONS = {"model", "training", "lora", "advantage", "opd", "topk_opd"}


def require(config: Config) -> None:
    """See that the package is there when it is configured.

    Raises:
        ConfigError: it is not installed.
    """
    project = config.metrics.wandb_project
    if project and importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"metrics.wandb_project {project!r} needs the package {PACKAGE}, which is not installed: "
            "pip install 'hintloop-trainer[wandb]', or remove the key"
        )


class WandbSink:
    """One run there for each run of the trainer; runs of one policy form a group."""

    def __init__(self, config: Config, directory: Path, run: str) -> None:
        """Begin a run; what the package keeps lies below ``directory``.

        Raises:
            ConfigError: the package is not installed, or refuses.
        """
        require(config)
        directory.mkdir(parents=True, exist_ok=True)
        package: Any = importlib.import_module(PACKAGE)
        self._error: type[Exception] = package.Error
        try:
            self._run: Any = package.init(
                project=config.metrics.wandb_project,
                group=config.policy.name,
                id=run,
                dir=str(directory),
                config=config.model_dump(mode="json", include=SHOWN_SECTIONS),
            )
        except self._error as error:
            raise ConfigError(
                f"metrics.wandb_project {config.metrics.wandb_project!r} cannot be used: {error}; set WANDB_API_KEY or "
                "WANDB_MODE=offline, or remove the key"
            ) from error
        # Its own counter cannot go back, and training can.
        self._run.define_metric("*", step_metric="step")

    def begin(self, step: int) -> None:
        """The step is a figure of its own there; a later line of the same step is drawn after the first."""

    def write(self, metrics: Metrics) -> None:
        """Send one step's figures.

        Raises:
            OSError: the package cannot take them.
        """
        try:
            self._run.log({name: value for name, value in metrics.items() if value is not None})
        except self._error as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()
