"""What can go wrong with scores of given tokens on vLLM's wire, each as a change of one.

A reply holds `prompt_logprobs`: per prompt token `null` (the first) or a map of ids to `{logprob, rank, …}`, the
token's own id among them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .wire import Asked, Change, Reply, refusing

COMPLETIONS = "/v1/completions"
#: Most candidates that the engines of the stack give.
MOST_CANDIDATES = 64
VOCABULARY = 49_152

Entry = dict[str, dict[str, Any]]
Rewrite = Callable[[list[int], list[Entry | None]], list[Entry | None]]


def is_scoring(body: Any) -> bool:
    """Whether a request asks for scores of its prompt."""
    return isinstance(body, dict) and body.get("prompt_logprobs") is not None and isinstance(body.get("prompt"), list)


def _scoring(rewrite: Rewrite) -> Change:
    def after(asked: Asked, reply: Reply) -> Reply | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body) or reply.status != 200:
            return None
        body = copy.deepcopy(reply.body)
        for choice in body["choices"]:
            choice["prompt_logprobs"] = rewrite(asked.body["prompt"], choice["prompt_logprobs"])
        return replace(reply, body=body)

    return Change(after=after)


def missing() -> Change:
    """The engine answers and leaves the scores out."""

    def after(asked: Asked, reply: Reply) -> Reply | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body) or reply.status != 200:
            return None
        body = copy.deepcopy(reply.body)
        for choice in body["choices"]:
            choice["prompt_logprobs"] = None
        return replace(reply, body=body)

    return Change(after=after)


def refused() -> Change:
    """The engine takes no request for scores."""
    return refusing(COMPLETIONS, 400, "prompt_logprobs is not supported by this endpoint", is_scoring)


def limited(most: int) -> Change:
    """The engine gives at most so many candidates."""
    message = f"Requested prompt logprobs of more than {most}, which is greater than max allowed: {most}"
    return refusing(COMPLETIONS, 400, message, lambda body: is_scoring(body) and body["prompt_logprobs"] > most)


def shifted(by: int) -> Change:
    """Every token gets the score of the one ``by`` places after it; ids stay where they are."""

    def rewrite(ids: list[int], entries: list[Entry | None]) -> list[Entry | None]:
        own = [
            None if entry is None else entry[str(token)]["logprob"] for token, entry in zip(ids, entries, strict=True)
        ]
        for place, (token, entry) in enumerate(zip(ids, entries, strict=True)):
            source = place + by
            value = own[source] if 0 <= source < len(own) else None
            if entry is not None and value is not None:
                entry[str(token)]["logprob"] = value
        return entries

    return _scoring(rewrite)


def tempered(temperature: float) -> Change:
    """Scores of the distribution at another temperature than 1.

    The engine is asked for all candidates that it gives; what lies outside them is taken for evenly spread.
    """

    async def before(asked: Asked) -> Asked | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body):
            return None
        return replace(asked, body={**asked.body, "prompt_logprobs": MOST_CANDIDATES})

    def after(asked: Asked, reply: Reply) -> Reply | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body) or reply.status != 200:
            return None
        body = copy.deepcopy(reply.body)
        for choice in body["choices"]:
            rows = zip(asked.body["prompt"], choice["prompt_logprobs"], strict=True)
            most = asked.body["prompt_logprobs"]
            choice["prompt_logprobs"] = [entry and _tempered(entry, token, temperature, most) for token, entry in rows]
        return replace(reply, body=body)

    return Change(before=before, after=after)


def _tempered(entry: Entry, token: int, temperature: float, most: int) -> Entry:
    values = [item["logprob"] for item in entry.values()]
    others = VOCABULARY - len(values)
    mass = max(1e-12, 1.0 - math.fsum(math.exp(value) for value in values))
    each = math.log(mass / others) / temperature
    total = math.fsum(math.exp(value / temperature) for value in values) + others * math.exp(each)
    norm = math.log(total)
    likely = sorted(entry, key=lambda key: -entry[key]["logprob"])[:most]
    kept = {key: item for key, item in entry.items() if key == str(token) or key in likely}
    return {key: {**item, "logprob": item["logprob"] / temperature - norm} for key, item in kept.items()}


def _find(ids: Sequence[int], wanted: Sequence[int]) -> int:
    """Where ``wanted`` begins in ``ids`` for the last time, or -1."""
    for start in range(len(ids) - len(wanted), -1, -1):
        if list(ids[start : start + len(wanted)]) == list(wanted):
            return start
    return -1


def without_hint(header: Sequence[int], end: int) -> Change:
    """The teacher never sees what stands from ``header`` up to the token ``end``: it scores as if unhinted."""

    def cut(ids: list[int]) -> tuple[int, int]:
        start = _find(ids, header)
        return (start, ids.index(end, start)) if start >= 0 and end in ids[start:] else (0, 0)

    return _with_prompt(cut, lambda hidden: [])


def with_filler(header: Sequence[int], end: int, filler: int) -> Change:
    """The teacher sees the hint's header and, in place of its words, one and the same token again and again."""

    def cut(ids: list[int]) -> tuple[int, int]:
        start = _find(ids, header)
        return (start + len(header), ids.index(end, start)) if start >= 0 and end in ids[start:] else (0, 0)

    return _with_prompt(cut, lambda hidden: [filler] * len(hidden))


def context_of(most: int) -> Change:
    """The engine silently reads only the last ``most`` tokens of what it is given."""
    return _with_prompt(lambda ids: (0, max(0, len(ids) - most)), lambda hidden: [])


def _with_prompt(cut: Callable[[list[int]], tuple[int, int]], instead: Callable[[list[int]], list[int]]) -> Change:
    """Send the prompt with ``ids[slice]`` replaced; the reply is filled up to the prompt that was asked."""

    async def before(asked: Asked) -> Asked | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body):
            return None
        ids = asked.body["prompt"]
        start, stop = cut(ids)
        if start == stop:
            return None
        return replace(asked, body={**asked.body, "prompt": [*ids[:start], *instead(ids[start:stop]), *ids[stop:]]})

    def after(asked: Asked, reply: Reply) -> Reply | None:
        if asked.path != COMPLETIONS or not is_scoring(asked.body) or reply.status != 200:
            return None
        ids = asked.body["prompt"]
        start, stop = cut(ids)
        if start == stop:
            return None
        put = len(instead(ids[start:stop]))
        body = copy.deepcopy(reply.body)
        for choice in body["choices"]:
            entries = choice["prompt_logprobs"]
            made = [{str(token): {"logprob": -1.0, "rank": 1}} for token in ids[start:stop]]
            full = [*entries[:start], *made, *entries[start + put :]]
            # The first token of what was read had none before it.
            for place, token in enumerate(ids):
                if place and full[place] is None:
                    full[place] = {str(token): {"logprob": -1.0, "rank": 1}}
            full[0] = None
            choice["prompt_logprobs"], choice["prompt_token_ids"] = full, ids
        return replace(reply, body=body)

    return Change(before=before, after=after)
