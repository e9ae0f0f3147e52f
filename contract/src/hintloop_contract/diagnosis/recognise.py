"""All recognisers together: from one look at a loop to the causes that its figures show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hintloop_contract.diagnosis import learning, publishing, signal, traffic
from hintloop_contract.diagnosis.figures import Expected, Recognised, Seen

Recogniser = Callable[[Seen, Expected], Recognised | None]
OnFailure = Callable[[str, Exception], None]

#: By the place of the chain that they look at.
PUBLISHING: tuple[Recogniser, ...] = (publishing.trainer, publishing.gate, publishing.unpublished, publishing.engines)
LEARNING: tuple[Recogniser, ...] = (
    learning.nothing_moves,
    learning.advantages,
    learning.drift,
    learning.entropy,
    learning.length,
    signal.hints_repeat,
    signal.one_score,
    learning.no_improvement,
)
TRAFFIC: tuple[Recogniser, ...] = (
    traffic.redis_full,
    traffic.unhinted,
    traffic.timeouts,
    traffic.session_gaps,
    traffic.stale,
    traffic.lost_turns,
)
EVERY = (*PUBLISHING, publishing.dead, *LEARNING, *TRAFFIC)


def recognise(
    seen: Seen, expected: Expected, recognisers: Sequence[Recogniser] = EVERY, on_failure: OnFailure | None = None
) -> list[Recognised]:
    """What the figures show, in the order of ``recognisers``; each cause once.

    ``on_failure`` is given the name of a recogniser that raised, and its error; the others go on. Without it the error
    is raised.
    """
    found: dict[str, Recognised] = {}
    for recogniser in recognisers:
        try:
            recognised = recogniser(seen, expected)
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(f"{recogniser.__module__.rpartition('.')[2]}.{recogniser.__name__}", error)
            continue
        if recognised is not None:
            found.setdefault(recognised.cause, recognised)
    return list(found.values())
