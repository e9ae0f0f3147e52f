"""What the judge's engine can do, found by asking it tiny questions. No judging here."""

from __future__ import annotations

from dataclasses import dataclass

from hintloop_judge.endpoint import ChatEndpoint
from hintloop_judge.errors import VoteError
from hintloop_judge.prompts import SCHEMAS
from hintloop_judge.votes import parse_vote

NUM_CHOICES = 2


@dataclass(frozen=True, slots=True)
class Abilities:
    """``structured_output``: answers under a JSON schema; ``several_choices``: gives as many choices as ``n`` says."""

    structured_output: bool
    several_choices: bool


async def probe(endpoint: ChatEndpoint, *, several_wanted: bool) -> Abilities:
    """Find out; ``n`` is only tried when several votes are wanted. Raises ``DependencyError``."""
    schema = await _takes_schema(endpoint)
    return Abilities(schema, several_wanted and await _gives_choices(endpoint))


async def _takes_schema(endpoint: ChatEndpoint) -> bool:
    """Whether an answer under a schema comes back as that schema says."""
    try:
        completion = await endpoint.complete(
            'Reply with JSON: {"score": 0}.', temperature=0.0, max_tokens=32, schema=SCHEMAS["score"]
        )
    except VoteError:
        return False
    return parse_vote("score", completion, schema=True).failed is None


async def _gives_choices(endpoint: ChatEndpoint) -> bool:
    """Whether ``n`` choices come back; some engines refuse it, others leave it unread."""
    try:
        # Engines refuse several choices at temperature 0, where all are equal.
        completion = await endpoint.complete("Reply with OK.", temperature=1.0, max_tokens=4, num=NUM_CHOICES)
    except VoteError:
        return False
    choices = completion.get("choices")
    return isinstance(choices, list) and len(choices) == NUM_CHOICES
