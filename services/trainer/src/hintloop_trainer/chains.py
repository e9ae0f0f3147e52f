"""Which samples go through the model as one sequence: turns of a session whose tokens later turns begin with.

A later turn's prompt usually holds the earlier turn, its answer included, token by token. Under causal attention a
position's hidden state depends on nothing behind it, so the earlier turn's trained rows are the later one's: the model
is gone through once, and what each sample's tokens add to the loss and its gradient stays what it was. Where a template
renders the past differently (it drops earlier reasoning, say), the tokens differ, and each turn goes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hintloop_trainer.batch import Example


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Samples whose inputs are one another's beginnings: each sample's are the first of the one before it."""

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
    return longest_first([Chain(tuple(reversed(run))) for run in _runs(examples)] if shared else alone(examples))


def alone(examples: Sequence[Example]) -> list[Chain]:
    """Every sample by itself, in the order given."""
    return [Chain((example,)) for example in examples]


def longest_first(found: Sequence[Chain]) -> list[Chain]:
    """Sorted by length, and where that is the same by turn."""
    return sorted(found, key=lambda chain: (-chain.num_tokens, chain.examples[0].turn_id))


def _runs(examples: Sequence[Example]) -> list[list[Example]]:
    """Samples in parts, each sample's inputs the beginning of the next one's in its part.

    What stands between two strings in lexicographic order begins with the first if the second does. So a sample is the
    beginning of some other exactly where it is the beginning of the one that follows it.
    """
    # Whole int64 values: a beginning of bytes of that length is one of tokens. Equal inputs may have other last tokens.
    keyed = sorted(((inputs(one).numpy().tobytes(), one.turn_id, one) for one in examples), key=lambda item: item[:2])
    runs: list[list[Example]] = []
    before = None
    for key, _, example in keyed:
        if before is not None and key.startswith(before):
            runs[-1].append(example)
        else:
            runs.append([example])
        before = key
    return runs


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
    return longest_first(parts)
