"""What the configured learning method needs of judge and teacher. Owns that decision; imports no loss and no torch.

A custom loss is a Python file; its ``REQUIRES`` is read from the source, never by running it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError

#: What a custom loss may declare.
REQUIREMENTS = ("score", "teacher_logprobs", "teacher_topk")

#: Built-in custom losses by file name; they are named with any directory before it.
BUILT_IN_LOSSES: dict[str, frozenset[str]] = {
    "topk_reverse_kl.py": frozenset({"teacher_topk"}),
    "topk_ppo_clip.py": frozenset({"teacher_topk"}),
}


@dataclass(frozen=True, slots=True)
class SignalNeeds:
    """``score`` and ``hint``: what the judge asks. ``either``: one of them is enough (`combine`).

    ``top_k``: candidates per token that the teacher returns with its log-probabilities; 0 for none.
    ``by_trainer``: the teacher service renders the hinted prompt and leaves scores to the trainer, which computes them
    or, for candidates of the student's choice, asks for them. ``own_teacher``: it computes them.
    """

    score: bool
    hint: bool
    either: bool = False
    top_k: int = 0
    by_trainer: bool = False
    own_teacher: bool = False

    @property
    def prm_engine(self) -> bool:
        """A PRM engine scores answers, for the teacher or, by way of it, for the trainer."""
        return self.hint and not self.own_teacher

    @property
    def teacher(self) -> bool:
        """The teacher scores turns that have a hint."""
        return self.hint


def signal_needs(config: Config, directory: Path | None = None) -> SignalNeeds:
    """Needs of the configured estimator or custom loss, looked up beside the configuration (``directory``).

    Raises:
        ConfigError: the custom loss is not found, or declares no valid ``REQUIRES``.
    """
    path = config.custom_loss
    own_teacher = config.prm.teacher_source == "trainer"
    if path is not None:
        required = loss_requirements(path, [directory or Path.cwd(), Path.cwd()])
        topk = "teacher_topk" in required
        chosen_by_student = topk and not config.topk_opd.use_teacher_topk
        return SignalNeeds(
            score="score" in required,
            hint=bool(required & {"teacher_logprobs", "teacher_topk"}),
            top_k=config.topk_opd.top_k if topk and not chosen_by_student else 0,
            by_trainer=own_teacher or chosen_by_student,
            own_teacher=own_teacher,
        )
    estimator = config.advantage.estimator
    if estimator == "grpo":
        return SignalNeeds(score=True, hint=False)
    either = estimator == "combine"
    return SignalNeeds(score=either, hint=True, either=either, by_trainer=own_teacher, own_teacher=own_teacher)


def loss_requirements(path: str, directories: Sequence[Path]) -> frozenset[str]:
    """The ``REQUIRES`` of a custom loss file, tried in ``directories`` and then among the built-in losses.

    Raises:
        ConfigError: no such file, unreadable source, or a missing or wrong ``REQUIRES``.
    """
    tried = list(dict.fromkeys(directory / path for directory in directories))
    for candidate in tried:
        if candidate.is_file():
            return _declared(candidate)
    built_in = BUILT_IN_LOSSES.get(Path(path).name)
    if built_in is not None:
        return built_in
    places = ", ".join(str(candidate) for candidate in tried)
    raise ConfigError(
        f"custom loss {path!r} was not found; tried {places} and the built-in losses "
        f"({', '.join(sorted(BUILT_IN_LOSSES))})"
    )


def _declared(path: Path) -> frozenset[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"custom loss {str(path)!r} cannot be read: {error}") from error
    for node in tree.body:
        value = _assigned_requires(node)
        if value is None:
            continue
        names = _names(value)
        if not names or not names <= set(REQUIREMENTS):
            raise ConfigError(
                f"custom loss {str(path)!r}: REQUIRES must be a non-empty set of {', '.join(REQUIREMENTS)}, "
                f"found {ast.unparse(value)}"
            )
        return frozenset(names)
    raise ConfigError(
        f"custom loss {str(path)!r} declares no REQUIRES; add for example REQUIRES = {{'teacher_logprobs'}} "
        f"(any of {', '.join(REQUIREMENTS)})"
    )


def _assigned_requires(node: ast.stmt) -> ast.expr | None:
    if isinstance(node, ast.Assign):
        named = any(isinstance(target, ast.Name) and target.id == "REQUIRES" for target in node.targets)
        return node.value if named else None
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "REQUIRES":
        return node.value
    return None


def _names(value: ast.expr) -> set[str]:
    """Strings of a literal set, list or tuple, bare or wrapped as ``frozenset({...})``; empty when it is none."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("set", "frozenset"):
        if len(value.args) != 1:
            return set()
        value = value.args[0]
    if not isinstance(value, ast.Set | ast.List | ast.Tuple):
        return set()
    names = {item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return names if len(names) == len(value.elts) else set()
