"""Scores of several answers to one prompt, against one another (GRPO, arXiv 2402.03300, section 4.1.2).

A group is the answers in one optimizer step whose prompts are the same token by token. It is formed before the step is
divided into micro-batches and over ranks.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Sequence

from hintloop_trainer.batch import Example

#: Added to a group's deviation, so that answers that are nearly alike do not explode.
EPSILON = 1e-6


def relative_scores(examples: Sequence[Example], group_size: int) -> list[Example]:
    """``examples`` with ``relative = (score - mean) / (deviation + EPSILON)`` in groups of at least ``group_size``.

    The deviation is the population's. Smaller groups, and samples without a score, are left as they are; a group whose
    scores are all the same teaches nothing: 0. Nothing is changed at ``group_size`` 1, where every group would be so.
    """
    if group_size < 2:
        return list(examples)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, example in enumerate(examples):
        if example.score is not None:
            groups[tuple(example.prompt_P.tolist())].append(index)
    found = list(examples)
    for members in groups.values():
        if len(members) < group_size:
            continue
        scores = [float(examples[index].score or 0) for index in members]
        mean, deviation = statistics.fmean(scores), statistics.pstdev(scores)
        for index, score in zip(members, scores, strict=True):
            found[index] = dataclasses.replace(examples[index], relative=(score - mean) / (deviation + EPSILON))
    return found
