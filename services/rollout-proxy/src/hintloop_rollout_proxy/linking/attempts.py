"""Tells repeated attempts from new requests. Keeps no state and moves nothing."""

from __future__ import annotations

from enum import Enum

from hintloop_rollout_proxy.linking.board import CUT_SLACK_MS, SLACK_MS
from hintloop_rollout_proxy.linking.events import Event, Kind, Reading
from hintloop_rollout_proxy.linking.index import Index
from hintloop_rollout_proxy.linking.nodes import Node
from hintloop_rollout_proxy.linking.normal_form import without_label, words_of

#: Words at a first request's beginning, and their share, that its rewritten attempt may leave out.
MAX_LEFT_OUT = 8
LEFT_OUT_SHARE = 0.4


class Change(Enum):
    """How the user's last texts differ from those of a failed attempt."""

    REWRITTEN = "rewritten"  # the same request in other words
    WENT_ON = "went_on"  # the failed one's words, and more: the next turn
    OTHER = "other"


def find_repeated(index: Index, node: Node) -> Node | None:
    """The attempt that ``node`` repeats word by word: the oldest failed one that nothing repeats yet, or one that the
    client says failed by counting its own retries."""
    equal = [
        attempt
        for attempt in reversed(index.at(node.scope, "request", node.digest))
        if _is_attempt_at(attempt, node) and attempt.next is None
    ]
    failed = [attempt for attempt in equal if not attempt.whole]
    if failed:
        return failed[0]
    if node.identity.attempt:
        counted = [attempt for attempt in equal if attempt.identity.attempt < node.identity.attempt]
        return counted[-1] if counted else None
    return None


def find_failed_before(index: Index, node: Node, reading: Reading) -> tuple[Node, Change] | None:
    """The newest failed attempt at the same place that only the user's last texts tell from ``node``."""
    if not node.tail:
        return None
    for attempt in index.at(node.scope, "failed", node.head_digest):
        if _is_attempt_at(attempt, node) and attempt.next is None and attempt.tail:
            change = compare_tails(attempt.tail, node.tail, is_first=len(reading.events) == len(node.tail))
            if change is not Change.OTHER:
                return attempt, change
    return None


def find_late_repeat(index: Index, failed: Node) -> Node | None:
    """A request that repeats ``failed`` but became known before it did."""
    for node in index.at(failed.scope, "request", failed.digest):
        later = node.start_ms >= failed.start_ms and node.turn_id != failed.turn_id
        if later and node.retry_of is None and _is_attempt_at(failed, node):
            return node
    return None


def _is_attempt_at(attempt: Node, node: Node) -> bool:
    """Whether an earlier request could be an attempt at this one."""
    slack_ms = SLACK_MS if attempt.whole or attempt.refused else CUT_SLACK_MS
    return (
        not attempt.replaced
        and attempt.turn_id != node.turn_id
        and attempt.family == node.family
        and attempt.frame_score(node.tools, node.system) > 0
        and not attempt.identity.bars(node.identity)
        and attempt.end_ms <= node.start_ms + slack_ms
        and node.start_ms <= attempt.deadline_ms
    )


def compare_tails(old: tuple[Event, ...], new: tuple[Event, ...], *, is_first: bool) -> Change:
    """How the user's texts changed after a failure. ``is_first``: nothing else stands in the requests."""
    old_texts, new_texts = [event.text for event in old], [event.text for event in new]
    while old_texts and new_texts and old_texts[0] == new_texts[0]:
        del old_texts[0], new_texts[0]
    told_anew = len(old) > 1 and _both_tell(old_texts, new_texts)
    if told_anew:
        del old_texts[-1], new_texts[-1]
    while old_texts and new_texts and old_texts[-1] == new_texts[-1]:
        del old_texts[-1], new_texts[-1]
    before, after = " ".join(old_texts), " ".join(new_texts)
    if told_anew and not before and not after:
        return Change.REWRITTEN
    if after == before or not before or (after.startswith(before + " ") and before not in after[len(before) :]):
        # Nothing of it is gone: either a further message, or one that was merged into the failed one.
        return Change.WENT_ON
    return Change.REWRITTEN if not is_first or _keeps(before, after) else Change.OTHER


def was_rewritten(attempt: Node, node: Node, reading: Reading, end: int) -> bool:
    """Whether the first ``end`` events of a later request hold what ``attempt`` said, and not what ``node`` said in its
    place."""
    old, new = {event.text for event in attempt.tail}, {event.text for event in node.tail}
    kept = set(reading.hashes[:end])
    return any(hash((Kind.USER, text)) in kept for text in old - new) and not any(
        hash((Kind.USER, text)) in kept for text in new - old
    )


def _both_tell(old_texts: list[str], new_texts: list[str]) -> bool:
    """Whether both end in what an agent tells of itself behind the user's words: it stands in markup, and changes."""
    return (
        all(texts and texts[-1].startswith("<") for texts in (old_texts, new_texts)) and old_texts[-1] != new_texts[-1]
    )


def _keeps(before: str, after: str) -> bool:
    """Whether ``after`` holds all of ``before``, perhaps without what stood at its beginning (a time, a label)."""
    words, text = words_of(without_label(before)), f" {' '.join(words_of(after))} "
    left_out = min(MAX_LEFT_OUT, int(len(words) * LEFT_OUT_SHARE))
    return bool(words) and any(f" {' '.join(words[start:])} " in text for start in range(left_out + 1))
