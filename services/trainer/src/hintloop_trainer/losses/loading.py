"""Find a loss by the path a configuration names, and check that it is one."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hintloop_contract.config.needs import BUILT_IN_LOSSES, REQUIREMENTS

from hintloop_trainer.errors import LossError
from hintloop_trainer.losses import policy
from hintloop_trainer.losses.inputs import Loss

SIGNATURE = "def compute_loss(inputs: LossInputs) -> TokenLosses"
BUILT_IN = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class LoadedLoss:
    """A loss, what it requires of samples, and where it came from. ``custom`` replaces the policy loss."""

    compute: Loss
    requires: frozenset[str]
    source: str
    custom: bool


def load_loss(path: str | None, config_dirs: Iterable[Path]) -> LoadedLoss:
    """The policy loss for ``None``; else the file at ``path``.

    A relative path is looked up beside the configuration files, in the working directory, and among the
    built-in losses by its last part (``openclaw_opd/losses/topk_reverse_kl.py`` is the built-in one).

    Raises:
        LossError: no such file, no such function, or another signature than :data:`SIGNATURE`.
    """
    if path is None:
        return LoadedLoss(policy.compute_loss, policy.REQUIRES, "policy", custom=False)
    file = _find(path, config_dirs)
    module = _execute(file)
    return LoadedLoss(_function(module, file), _requires(module, file), str(file), custom=True)


def _find(path: str, config_dirs: Iterable[Path]) -> Path:
    candidates = [directory / path for directory in config_dirs] + [Path.cwd() / path]
    if Path(path).name in BUILT_IN_LOSSES:
        candidates.append(BUILT_IN / Path(path).name)
    tried = list(dict.fromkeys(candidate.resolve() for candidate in candidates))
    for candidate in tried:
        if candidate.is_file():
            return candidate
    raise LossError(
        f"custom loss {path!r} was not found; tried {', '.join(map(str, tried))}; built in are "
        f"{', '.join(BUILT_IN_LOSSES)}; the file must define `{SIGNATURE}`"
    )


def _execute(file: Path) -> ModuleType:
    if file.parent == BUILT_IN:
        return importlib.import_module(f"hintloop_trainer.losses.{file.stem}")
    spec = importlib.util.spec_from_file_location(f"hintloop_custom_loss_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise LossError(f"custom loss {file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise LossError(f"custom loss {file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _function(module: ModuleType, file: Path) -> Any:
    function = getattr(module, "compute_loss", None)
    if not callable(function):
        raise LossError(f"custom loss {file} defines no compute_loss; expected `{SIGNATURE}`")
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise LossError(f"custom loss {file}: compute_loss has {error}; expected `{SIGNATURE}`") from error
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    mandatory = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    if not parameters or parameters[0].kind not in positional or len(mandatory) > 1:
        raise LossError(f"custom loss {file} defines compute_loss{signature}; expected `{SIGNATURE}`")
    return function


def _requires(module: ModuleType, file: Path) -> frozenset[str]:
    declared = getattr(module, "REQUIRES", None)
    named = isinstance(declared, set | frozenset | tuple | list) and all(name in REQUIREMENTS for name in declared)
    if not named or not declared:
        raise LossError(
            f"custom loss {file}: REQUIRES is {declared!r}; it must be a non-empty set out of {', '.join(REQUIREMENTS)}"
        )
    return frozenset(declared)
