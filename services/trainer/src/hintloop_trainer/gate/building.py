"""The gate that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from hintloop_contract.config.schema import Config

from hintloop_trainer.gate.answerers import AnsweringProcess
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.messages import Prompt, Setup
from hintloop_trainer.gate.probes import read_probes


def gate_from(config: Config) -> Gate | None:
    """The gate, or ``None`` where there is none.

    Raises:
        ConfigError: the probe file cannot be used.
    """
    section = config.gate
    if not section.enabled:
        return None
    probes = read_probes(section.probe_file)
    base = Path(config.model.student_model_path).resolve()
    setup = Setup(
        base=str(base),
        tokenizer=str(Path(config.tokenizer_dir).resolve()),
        dtype=config.model.dtype,
        device=section.device,
        temperature=config.rollout.temperature if section.temperature is None else section.temperature,
        max_new_tokens=section.max_new_tokens,
        seed=section.seed,
        batch_size=section.batch_size,
        prompts=[Prompt(probe.messages, probe.prompt_ids) for probe in probes],
    )
    return Gate(section, probes, AnsweringProcess(setup, section.timeout_s), base)
