"""Faults of the teacher: its engine's scores, its tokenizer, its context, and how prompts are rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import scores
from .agent import Day
from .configuration import WIDE, overlaid, swapped_tokenizer
from .deployment import END_OF_MESSAGE, Deployment
from .fault import Fault, Injector
from .wire import Change, refusing, rewriting

HEADER = "[user's hint / instruction]"
TOKENIZE = "/tokenize"
#: Fewer tokens than any hinted prompt has, and more than a question by itself.
SHORT_CONTEXT = 48

Changes = Callable[[Deployment], list[Change]]


def on_prm(changes: Changes, *, restarted: bool = False) -> Injector:
    """The PRM engine behaves so from now on; ``restarted``: judge and teacher meet it so from their start."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        with stack.prm_wire.changed(*changes(stack)):
            if restarted:
                stack.restart("prm", wait=False)
            yield
        if restarted:
            stack.restart("prm")

    return inject


def on_policy(changes: Changes) -> Injector:
    """The policy engine behaves so, and agents talk meanwhile."""

    @contextmanager
    def inject(stack: Deployment) -> Iterator[None]:
        with stack.traffic.put_aside(fresh=True), stack.policy_wire.changed(*changes(stack)):
            stack.talk(1, Day(turns=2))
            stack.quiet()
            yield

    return inject


def _end(stack: Deployment) -> int:
    token: int = stack.tokenizer.token_to_id(END_OF_MESSAGE)
    return token


def deaf(stack: Deployment) -> list[Change]:
    """Its model scores as if there were no hint."""
    return [scores.without_hint(stack.ids(HEADER), _end(stack))]


def hears_filler(stack: Deployment) -> list[Change]:
    """Its model sees that there is a hint, and none of its words."""
    return [scores.with_filler(stack.ids(HEADER), _end(stack), stack.ids(" the")[0])]


def other_ids(stack: Deployment) -> list[Change]:
    """It encodes text by another vocabulary."""

    def shift(asked: Any, body: Any) -> Any:
        return {**body, "tokens": [(token + 1) % scores.VOCABULARY for token in body["tokens"]]}

    return [rewriting(TOKENIZE, shift, lambda body: "prompt" in (body or {}))]


def short_context(stack: Deployment) -> list[Change]:
    """It was started with a context that hinted prompts do not fit in."""

    def told(asked: Any, body: Any) -> Any:
        return {**body, "data": [{**row, "max_model_len": SHORT_CONTEXT} for row in body["data"]]}

    message = f"This model's maximum context length is {SHORT_CONTEXT} tokens."
    too_long = refusing(
        scores.COMPLETIONS, 400, message, lambda body: scores.is_scoring(body) and len(body["prompt"]) >= SHORT_CONTEXT
    )
    return [rewriting("/v1/models", told), too_long]


def _is_rendering(body: Any) -> bool:
    return isinstance(body, dict) and "messages" in body


def dated_template(stack: Deployment) -> list[Change]:
    """Rendering puts a line with the day before everything; answers to chats were made without."""
    line = stack.ids("<|im_start|>system\nToday is Monday.<|im_end|>\n")

    def longer(asked: Any, body: Any) -> Any:
        tokens = [*line, *body["tokens"]]
        return {**body, "tokens": tokens, "count": len(tokens)}

    return [rewriting(TOKENIZE, longer, _is_rendering)]


def trimmed_template(stack: Deployment) -> list[Change]:
    """Rendering leaves out the system message that the chat's template adds by itself."""

    def shorter(asked: Any, body: Any) -> Any:
        tokens, end = body["tokens"], _end(stack)
        after = tokens.index(end) + 2 if end in tokens else 0
        kept = tokens[after:] if len(tokens) > after and tokens.count(end) > 1 else tokens
        return {**body, "tokens": kept, "count": len(kept)}

    return [rewriting(TOKENIZE, shorter, _is_rendering)]


@contextmanager
def few_candidates(stack: Deployment) -> Iterator[None]:
    """A provider that gives at most twenty candidates, under a method that asks for the usual 64."""
    values = {"topk_opd": {"top_k": 64}, "advantage": WIDE["advantage"]}
    with stack.prm_wire.changed(scores.limited(20)), stack.with_given(stack.overlay("k-64", values)):
        yield


FAULTS = [
    Fault(
        "PRM without log-probabilities",
        on_prm(lambda stack: [scores.missing()]),
        on_prm(lambda stack: [scores.refused()], restarted=True),
    ),
    Fault("K above the limit", overlaid("k-200", WIDE), few_candidates),
    Fault("tokenizer differs", swapped_tokenizer, on_prm(other_ids, restarted=True)),
    Fault("rendered prompt differs from the captured one", on_policy(dated_template), on_policy(trimmed_template)),
    Fault(
        "temperature mismatch",
        on_prm(lambda stack: [scores.tempered(0.6)]),
        on_prm(lambda stack: [scores.tempered(1.5)], restarted=True),
    ),
    Fault(
        "off-by-one teacher",
        on_prm(lambda stack: [scores.shifted(1)]),
        on_prm(lambda stack: [scores.shifted(-1)], restarted=True),
    ),
    Fault("a teacher that cannot follow its hints", on_prm(deaf), on_prm(hears_filler)),
    Fault(
        "teacher context cut",
        on_prm(short_context, restarted=True),
        on_prm(lambda stack: [scores.context_of(24)]),
    ),
]
