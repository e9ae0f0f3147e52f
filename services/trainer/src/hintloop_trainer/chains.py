"""Which samples go through the model as one sequence: turns of a session whose tokens later turns begin with.

A later turn's prompt usually holds the earlier turn, its answer included, token by token. Under causal attention a
position's hidden state depends on nothing behind it, so the earlier turn's trained rows are the later one's: the model
is gone through once, and what each sample's tokens add to the loss and its gradient stays what it was. Where a template
renders the past differently (it drops earlier reasoning, say), the tokens differ, and each turn goes by itself. So do
answers to one prompt, though one may be the beginning of the other: no position is trained for two samples, and a
sequence never has more trained rows than positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hintloop_trainer.batch import Example


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Samples of which each one's inputs are the beginning of the prompt of the one before it."""

    examples: tuple[Example, ...]
    """The longest first."""

    @property
    def num_tokens(self) -> int:
        """Prompt and response tokens of the longest."""
        return self.examples[0].num_tokens

    @property
    def num_positions(self) -> int:
        """What goes through the model. The last token is only ever a target."""
        return self.examples[0].num_tokens - 1


def inputs(example: Example) -> torch.Tensor:
    """All tokens of a sample but the last, int64 ``[num_tokens - 1]``."""
    return torch.cat([example.prompt_P, example.response_T])[:-1]


def chains(examples: Sequence[Example], *, shared: bool) -> list[Chain]:
    """``examples`` as chains, the longest chain first; every sample by itself unless ``shared``.

    The order that samples come in changes nothing.
    """
    return _longest_first(_joined(examples) if shared else alone(examples))


def alone(examples: Sequence[Example]) -> list[Chain]:
    """Every sample by itself, in the order given."""
    return [Chain((example,)) for example in examples]


def _longest_first(found: Sequence[Chain]) -> list[Chain]:
    """Sorted by length, and where that is the same by turn."""
    return sorted(found, key=lambda chain: (-chain.num_tokens, chain.examples[0].turn_id))


def _joined(examples: Sequence[Example]) -> list[Chain]:
    """Each sample behind one whose prompt begins with its inputs, if there is one behind which no other stands."""
    # Of one width each: bytes that begin others are tokens that do. Equal inputs may have other last tokens.
    keys = (inputs(example).to(torch.int32).numpy().tobytes() for example in examples)
    keyed = [(key, example.turn_id, example) for key, example in zip(keys, examples, strict=True)]
    keyed.sort(key=lambda item: item[:2])
    found: list[list[Example]] = []
    ending: dict[int, list[Example]] = {}
    for place in reversed(range(len(keyed))):
        key, _, example = keyed[place]
        later = _beginning_with(key, keyed, place + 1)
        free = (other for other in later if other in ending and example.num_tokens <= len(keyed[other][2].prompt_P))
        chain = ending.pop(next(free, -1), [])
        if not chain:
            found.append(chain)
        chain.append(example)
        ending[place] = chain
    return [Chain(tuple(chain)) for chain in found]


def _beginning_with(key: bytes, keyed: Sequence[tuple[bytes, str, Example]], start: int) -> Iterator[int]:
    """Places from ``start``: what begins with a string follows it in lexicographic order, without a gap."""
    return takewhile(lambda place: keyed[place][0].startswith(key), range(start, len(keyed)))


def apart(found: Sequence[Chain], count: int) -> list[Chain]:
    """``found`` in at least ``count`` chains, as far as there are samples: the shortest sample of a chain leaves first.

    So that no data-parallel rank is without work: to compute a beginning twice costs less than an idle rank's wait.
    """
    parts = list(found)
    while len(parts) < count:
        able = [chain for chain in parts if len(chain.examples) > 1]
        if not able:
            break
        chain = min(able, key=lambda chain: (chain.examples[-1].num_tokens, chain.examples[-1].turn_id))
        parts.remove(chain)
        parts += [Chain(chain.examples[:-1]), Chain(chain.examples[-1:])]
    return _longest_first(parts)
