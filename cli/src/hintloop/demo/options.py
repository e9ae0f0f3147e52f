"""What the demo is asked for, and the configuration that follows from it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hintloop.demo.prompts import MIN_EVAL_ANSWERS
from hintloop.demo.user import MAX_TOKENS, TEMPERATURE
from hintloop.local.engines import EngineName
from hintloop.local.resolution import Values

Method = Literal["opd", "binary", "combine", "topk"]

#: Samples of one optimizer step, and conversations of one round.
BATCH_SIZE = 16
#: Share of the captured answers that is asked again without sampling.
GREEDY_SHARE = 0.05

_ESTIMATORS = {"opd": "on_policy_distillation", "binary": "grpo", "combine": "combine", "topk": "grpo"}
_TOPK_LOSS = "openclaw_opd/losses/topk_reverse_kl.py"


def _started() -> float:
    """Epoch seconds at which the set-up began; `make` says so, because it builds environments first."""
    given = os.environ.get("HINTLOOP_STARTED_AT", "")
    return float(given) if given.replace(".", "", 1).isdigit() else time.time()


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """One run of the demo."""

    steps: int = 8
    method: Method = "opd"
    engine: EngineName = "vllm"
    prm_engine: EngineName = "vllm"
    eval_prompts: Path | None = None
    eval_answers: int = MIN_EVAL_ANSWERS
    """Fewest held-out answers before and after; questions are asked again until there are so many."""
    state_dir: Path = Path(".hintloop/demo")
    seed: int = 0
    step_timeout_s: float = 300.0
    started: float = field(default_factory=_started)


def overlay(options: DemoOptions) -> Values:
    """The recipe. Every answer carries a hint, so a turn without one is none of the demo's."""
    values: Values = {
        "model": {"dtype": "float32", "max_seq_len": 1024},
        "rollout": {
            "engine": options.engine,
            "rollout_batch_size": BATCH_SIZE,
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "max_new_tokens": MAX_TOKENS,
            "session_timeout_sec": 30.0,
        },
        "training": {
            "train_batch_size": BATCH_SIZE,
            "micro_batch_size": 8,
            "learning_rate": 2e-5,
            # The whole rate from the first step on made the answers so uneven that the gate held steps back.
            "lr_warmup_steps": 7,
            "grad_clip": 1.0,
            "save_interval": 4,
            "seed": options.seed + 1,
        },
        "advantage": {"estimator": _ESTIMATORS[options.method]},
        "prm": {"judge_backend": "rules"},
        "opd": {"advantage_clip": 5.0, "drop_sample_without_hint": True, "log_teacher_logprobs": True},
        "topk_opd": {"top_k": 64},
        "linker": {"settle_ms": 300},
        # Long enough to tell answers apart, and a few seconds a step.
        "gate": {"max_new_tokens": 32},
        "policy": {"name": "demo"},
    }
    if options.method == "topk":
        values["advantage"]["custom_loss_function_path"] = _TOPK_LOSS
    return values
