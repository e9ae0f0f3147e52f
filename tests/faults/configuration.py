"""Faults of the configuration: keys that cannot do what they are set to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .agent import Day
from .deployment import Deployment
from .fault import Fault, Injector
from .services import Given

TOPK = "openclaw_opd/losses/topk_reverse_kl.py"

#: A loss under a name that the trainer does not look for.
NO_FUNCTION = """REQUIRES = {"teacher_logprobs"}


def loss(inputs):
    return inputs.logprobs_N
"""
#: A loss as another framework calls it.
OTHER_SIGNATURE = """REQUIRES = {"teacher_logprobs"}


def compute_loss(log_probs, old_log_probs, advantages, loss_mask):
    return -(log_probs * advantages * loss_mask).mean()
"""


def overlaid(name: str, values: Mapping[str, Mapping[str, Any]]) -> Injector:
    """The configuration as it is written; no service gets as far as to start with it."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        with stack.with_given(stack.overlay(name, values)):
            yield

    return inject


def by_environment(**env: str) -> Injector:
    """The same by the environment."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        with stack.with_given(Given(env=env)):
            yield

    return inject


def by_settings(name: str, values: Mapping[str, Mapping[str, Any]]) -> Injector:
    """The same by a settings file."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        path = stack.folder / f"{name}.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        with stack.with_given(Given(settings=[path])):
            yield

    return inject


@contextmanager
def hints_off(stack: Deployment) -> Iterator[None]:
    """Hints are not asked for, and agents talk meanwhile."""
    given = stack.overlay("hints-off", {"opd": {"enable_hint_extraction": False}})
    with stack.traffic.put_aside(fresh=True), stack.with_given(given, "prm"):
        stack.talk(4, Day(turns=3))
        stack.quiet()
        yield


@contextmanager
def loss_file(stack: Deployment, name: str, source: str) -> Iterator[None]:
    """A custom loss of the user's own."""
    (stack.folder / name).write_text(source, encoding="utf-8")
    values = {"training": {"use_custom_loss": True, "custom_loss_path": name}}
    with stack.with_given(stack.overlay(Path(name).stem, values)):
        yield


@contextmanager
def no_function(stack: Deployment) -> Iterator[None]:
    """The file defines no `compute_loss`."""
    with loss_file(stack, "my_loss.py", NO_FUNCTION):
        yield


@contextmanager
def other_signature(stack: Deployment) -> Iterator[None]:
    """Its `compute_loss` takes what another framework gives."""
    with loss_file(stack, "ported_loss.py", OTHER_SIGNATURE):
        yield


@contextmanager
def large_student(stack: Deployment) -> Iterator[None]:
    """The student is replaced by one of a size that this machine cannot train."""
    folder = stack.folder / "large-student"
    folder.mkdir(exist_ok=True)
    for file in stack.model_dir.iterdir():
        link = folder / file.name
        if file.name not in ("config.json", ".complete") and not link.exists():
            link.symlink_to(file)
    config = json.loads((stack.model_dir / "config.json").read_text())
    config |= {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8}
    config.pop("head_dim", None)
    (folder / "config.json").write_text(json.dumps(config))
    with stack.with_given(stack.overlay("large-student", {"model": {"student_model_path": str(folder)}})):
        yield


@contextmanager
def swapped_tokenizer(stack: Deployment) -> Iterator[None]:
    """The student's tokenizer has two of its tokens the other way round than the teacher's."""
    folder = stack.folder / "swapped-tokenizer"
    folder.mkdir(exist_ok=True)
    data = json.loads((stack.model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = data["model"]["vocab"]
    one, two = "\u0120the", "\u0120and"
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    given = stack.overlay("swapped-tokenizer", {"model": {"tokenizer_path": str(folder)}})
    with stack.with_given(given):
        yield


GENERATE = {"opd": {"teacher_scoring_mode": "generate"}}
WIDE = {"topk_opd": {"top_k": 200}, "advantage": {"estimator": "grpo", "custom_loss_function_path": TOPK}}
NOWHERE = {"training": {"use_custom_loss": True, "custom_loss_path": "losses/reverse_kl_v2.py"}}
FOLDER = {"advantage": {"custom_loss_function_path": "openclaw_opd/losses"}}
CROWDED = {"training": {"micro_batch_size": 8192}}

FAULTS = [
    Fault(
        "`generate` scoring",
        overlaid("generate", GENERATE),
        by_environment(HINTLOOP_OPD__TEACHER_SCORING_MODE="generate"),
    ),
    Fault("hint extraction off", hints_off, by_settings("hints-off", {"opd": {"enable_hint_extraction": False}})),
    Fault(
        "`kl_coef` set in OPD",
        overlaid("kl", {"training": {"kl_coef": 0.05}}),
        overlaid("kl-forced", {"training": {"kl_coef": 0.5, "force_kl": True}}),
    ),
    Fault("custom loss path wrong", overlaid("loss-nowhere", NOWHERE), overlaid("loss-folder", FOLDER)),
    Fault("`compute_loss` missing", no_function, other_signature),
    Fault("memory estimate exceeded", overlaid("crowded", CROWDED), large_student),
]
