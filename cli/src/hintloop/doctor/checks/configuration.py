"""The configuration by itself: what is set, what it means together, whether the student can be read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hintloop_contract.config.learning import SMALLEST_RATE
from hintloop_contract.config.needs import signal_needs
from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import HintloopError

from hintloop.doctor.finding import Finding, fail, ok, warn
from hintloop.doctor.look import Look


async def check(look: Look) -> list[Finding]:
    """Findings of the configuration."""
    config = look.config
    try:
        needs = signal_needs(config, look.loaded.directory)
    except HintloopError as error:
        return [fail("method", str(error), _of_loss(str(error)))]
    method = config.custom_loss or config.advantage.estimator
    wants = [name for name, wanted in (("scores", needs.score), ("hints", needs.hint)) if wanted]
    findings = [ok("method", f"{method} learns from {' and '.join(wants)}"), _student(look)]
    if needs.hint and not needs.either and not config.opd.enable_hint_extraction:
        findings.append(fail("hints", "opd.enable_hint_extraction is false", Cause.HINTS_SWITCHED_OFF))
    if config.training.learning_rate < SMALLEST_RATE:
        seen = f"training.learning_rate {config.training.learning_rate:g} changes no weight"
        findings.append(fail("learning rate", seen, Cause.LEARNING_RATE_ZERO))
    if config.training.kl_coef and needs.hint and not needs.score:
        seen = f"training.kl_coef {config.training.kl_coef:g} is forced on a method that distils already"
        findings.append(warn("reference kl", seen, Cause.KL_IN_OPD))
    if needs.hint and not config.opd.drop_sample_without_hint:
        seen = "opd.drop_sample_without_hint is false"
        findings.append(warn("turns without a hint", seen, Cause.UNHINTED_TURNS_TRAINED))
    if config.prm.judge_backend != "rules":
        findings += _votes(look)
    return findings


def _of_loss(message: str) -> Cause:
    """Which of the three things is wrong with a custom loss that cannot be read."""
    if "was not found" in message:
        return Cause.CUSTOM_LOSS_MISSING
    named = re.search(r"custom loss '([^']+)'", message)
    if named is None or not message.split(":", 1)[-1].strip():
        return Cause.CUSTOM_LOSS_UNUSABLE
    return Cause.CUSTOM_LOSS_UNUSABLE if _defines_loss(Path(named[1])) else Cause.COMPUTE_LOSS_MISSING


def _defines_loss(path: Path) -> bool:
    """Whether a file has a ``compute_loss``; true where that cannot be seen, for then something else is wrong."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return True
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == "compute_loss":
            return True
        # An assignment or an import may bind the name, too.
        names = [found.id for found in ast.walk(node) if isinstance(found, ast.Name)]
        names += [
            alias.asname or alias.name
            for found in ast.walk(node)
            if isinstance(found, ast.ImportFrom)
            for alias in found.names
        ]
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) and ("compute_loss" in names or "*" in names):
            return True
    return False


def _student(look: Look) -> Finding:
    path = Path(look.config.model.student_model_path)
    if not look.config.model.student_model_path or not (path / "config.json").is_file():
        seen = f"model.student_model_path {look.config.model.student_model_path!r} holds no config.json"
        return fail("student", seen, Cause.STUDENT_UNREADABLE)
    if not (Path(look.config.tokenizer_dir) / "tokenizer.json").is_file():
        return fail("student", f"{look.config.tokenizer_dir!r} holds no tokenizer.json", Cause.STUDENT_UNREADABLE)
    return ok("student", str(path))


def _votes(look: Look) -> list[Finding]:
    from hintloop_judge.llm import equal_votes

    return [warn("votes", note, Cause.EQUAL_VOTES) for note in equal_votes(look.config.opd, look.config.prm)]
