"""Finds earlier prompts with their answers at the beginning of a prompt that is one text, or one list of ids.

A sequence is found by the digest of its last whole step, then told by the digest of all of it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from hintloop_rollout_proxy.linking.prompt_reading import IDS_MARK

#: Bytes between two digests by which sequences are found.
STEP = 64


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """Where an answer ends in its sequence. ``key`` is the length of the last whole step and the digest so far."""

    length: int
    key: tuple[int, bytes]
    digest: bytes


def end_of(sequence: bytes) -> SequenceEnd:
    """The end of a whole sequence."""
    last_step = len(sequence) - len(sequence) % STEP
    return SequenceEnd(len(sequence), (last_step, sequence_digest(sequence[:last_step])), sequence_digest(sequence))


def ends_of(sequence: bytes, answer: str, response_ids: array[int] | None) -> tuple[SequenceEnd, ...]:
    """The ends by which a prompt with its answer may be repeated: whole or trimmed, with or without its last id."""
    if not sequence.startswith(IDS_MARK):
        texts = dict.fromkeys((answer, answer.rstrip(), answer.strip()))
        return tuple(end_of(sequence + text.encode("utf-8", "surrogatepass")) for text in texts if text)
    if not response_ids:
        return ()
    ids = response_ids.tobytes()
    kept = dict.fromkeys((ids, ids[: -response_ids.itemsize]))
    return tuple(end_of(sequence + part) for part in kept if part)


def step_keys(sequence: bytes) -> Iterator[tuple[int, bytes]]:
    """Keys of everything that may stand at the beginning of ``sequence``, longest first."""
    state = hashlib.blake2b(digest_size=16)
    keys = [(0, state.digest())]
    for start in range(0, len(sequence) - STEP + 1, STEP):
        state.update(sequence[start : start + STEP])
        keys.append((start + STEP, state.copy().digest()))
    return reversed(keys)


def begins_with(sequence: bytes, end: SequenceEnd) -> bool:
    """Whether ``sequence`` begins with the one that ends so, and goes on."""
    return len(sequence) > end.length and sequence_digest(sequence[: end.length]) == end.digest


def sequence_digest(data: bytes) -> bytes:
    """Digest of a sequence, or of its beginning."""
    return hashlib.blake2b(data, digest_size=16).digest()
