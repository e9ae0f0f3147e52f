"""Looks at the PRM engine before anything is taught by it: which dialect, which limits, are its scores aligned.

Every check that fails ends in a ``ProbeError`` that says what to change; an engine that is away is a
``DependencyError`` and tried again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from hintloop_contract.config.schema import PrmSection
from hintloop_contract.errors import DependencyError

from hintloop_teacher.dialects.base import Dialect
from hintloop_teacher.dialects.openai import OpenAiDialect
from hintloop_teacher.dialects.sglang import SglangDialect
from hintloop_teacher.dialects.vllm import VllmDialect
from hintloop_teacher.errors import ProbeError, RefusedError, TeachError
from hintloop_teacher.forced import POSITIVE_NOISE, ForcedScores
from hintloop_teacher.http import EngineClient
from hintloop_teacher.scoring import DEPENDENCY, ForcedScorer
from hintloop_teacher.vocabulary import Vocabulary, read_tokenizer, same_tokenizer

#: Same tokens scored twice may differ this much (bfloat16 in another batch); random tokens differ by nats.
REPEAT_TOLERANCE = 0.3
#: Two readings of one forward pass differ by rounding alone.
SAME_ROW_TOLERANCE = 1e-3
NUM_PROBE_TOKENS = 12


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found. ``checks``: name of each check to its result."""

    dialect: str
    version: str | None
    model: str
    max_input_len: int | None
    vocabulary_size: int
    top_k: int
    checks: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


async def probe(
    client: EngineClient, section: PrmSection, vocabulary: Vocabulary, top_k: int
) -> tuple[ForcedScorer, ProbeReport]:
    """Find the dialect and check that it can teach with ``top_k`` candidates.

    Raises:
        ProbeError: it cannot; the message says why.
        DependencyError: it is away.
    """
    trusted = _trusted(section, vocabulary)
    dialect = await _dialect(client, section, trusted)
    facts = await dialect.facts(section.teacher_model)
    scorer = ForcedScorer(dialect, facts, vocabulary_size=vocabulary.size, max_concurrency=section.max_concurrency)
    checks = {"vocabulary": await _check_vocabulary(scorer, vocabulary, trusted)}
    try:
        checks["forced_scoring"] = await _check_alignment(scorer)
        checks["top_k"] = await _check_top_k(scorer, top_k)
    except TeachError as error:
        raise ProbeError(f"{client.root_url} ({dialect.name}) cannot score given tokens: {error}") from error
    report = ProbeReport(dialect.name, facts.version, facts.model, facts.max_input_len, vocabulary.size, top_k, checks)
    return scorer, report


async def _dialect(client: EngineClient, section: PrmSection, trusted: bool) -> Dialect:
    engine = section.engine if section.engine != "auto" else await detect(client)
    if engine == "sglang":
        return SglangDialect(client)
    if engine == "vllm":
        return VllmDialect(client)
    return OpenAiDialect(client, trust_positions=trusted)


async def detect(client: EngineClient) -> str:
    """``sglang``, ``vllm`` or ``openai``, by routes that only one of them has."""
    if await _has(client, "/model_info", "model_path"):
        return "sglang"
    if await _has(client, "/version", "version"):
        return "vllm"
    return "openai"


async def _has(client: EngineClient, path: str, key: str) -> bool:
    try:
        body = await client.get(path)
    except RefusedError:
        return False
    return isinstance(body, dict) and key in body


def _trusted(section: PrmSection, vocabulary: Vocabulary) -> bool:
    """Whether the teacher's tokenizer is given and equals the student's."""
    path = section.teacher_tokenizer_path
    if path is None:
        return False
    if not same_tokenizer(read_tokenizer(path, "prm.teacher_tokenizer_path"), vocabulary.tokenizer):
        raise ProbeError(
            f"prm.teacher_tokenizer_path {path!r} differs from the student's tokenizer; teacher and student must "
            "share vocabulary and special ids: take a teacher of the student's family"
        )
    return True


async def _check_vocabulary(scorer: ForcedScorer, vocabulary: Vocabulary, trusted: bool) -> str:
    for text in vocabulary.probes:
        if not text:
            continue
        theirs = await scorer.dialect.encode(scorer.facts.model, text)
        if theirs is None:
            return _unproven(scorer, trusted)
        if theirs != vocabulary.encode(text):
            raise ProbeError(
                f"the PRM engine's model {scorer.facts.model!r} encodes {text[:30]!r}… otherwise than the student's "
                "tokenizer; teacher and student must share vocabulary and special ids"
            )
    return "equal to the student's"


def _unproven(scorer: ForcedScorer, trusted: bool) -> str:
    if trusted:
        return "equal to the student's by prm.teacher_tokenizer_path"
    if scorer.dialect.proves_ids:
        return "proven by echoed ids alone"
    raise ProbeError("the PRM engine's vocabulary cannot be seen; set prm.teacher_tokenizer_path to its tokenizer")


async def _check_alignment(scorer: ForcedScorer) -> str:
    """Score one sequence three ways: whole, from the middle, and with its last token changed."""
    ids = [(7919 * i + 101) % scorer.vocabulary_size for i in range(1, NUM_PROBE_TOKENS + 1)]
    middle = NUM_PROBE_TOKENS // 2
    whole = (await _scored(scorer, ids[:1], ids[1:], 0)).logprobs
    later = (await _scored(scorer, ids[:middle], ids[middle:], 0)).logprobs
    other = [*ids[1:-1], (ids[-1] + 1) % scorer.vocabulary_size]
    changed = (await _scored(scorer, ids[:1], other, 0)).logprobs
    if float(np.abs(whole[middle - 1 :] - later).max()) > REPEAT_TOLERANCE:
        raise ProbeError("the same tokens score differently when the scored part starts later: scores are shifted")
    if float(np.abs(whole[:-1] - changed[:-1]).max()) > REPEAT_TOLERANCE:
        raise ProbeError("changing the last token changes the scores of those before it: scores are shifted")
    if float(whole[-1]) == float(changed[-1]):
        raise ProbeError("changing the last token leaves its score as it was: scores are shifted")
    return "aligned"


async def _check_top_k(scorer: ForcedScorer, top_k: int) -> str:
    """Score the engine's own best candidates: each must score what its row said, and no token above them."""
    if top_k == 0:
        return "not needed"
    ids = [(104729 * i + 11) % scorer.vocabulary_size for i in range(1, 5)]
    scores = await _scored(scorer, ids[:2], ids[2:], top_k)
    _check_rows(scores, ids[2:])
    for position in range(2, len(ids)):
        best, said = int(scores.topk_ids[position - 2, 0]), float(scores.topk_logprobs[position - 2, 0])
        again = await _scored(scorer, ids[:position], [best], top_k)
        _check_rows(again, [best])
        found = float(again.logprobs[0])
        if abs(found - said) > REPEAT_TOLERANCE:
            raise ProbeError(
                f"the engine's best candidate {best} has log-probability {said:.4f} among the candidates and "
                f"{found:.4f} when it is scored: the candidates are not of the scored tokens"
            )
    return f"{top_k} candidates"


def _check_rows(scores: ForcedScores, token_ids: list[int]) -> None:
    """Rows [T, K] are log-probabilities in order, and agree with those [T] of the tokens themselves."""
    assert scores.topk_logprobs is not None and scores.topk_ids is not None
    rows_TK = scores.topk_logprobs
    if not np.isfinite(rows_TK).all() or (rows_TK > POSITIVE_NOISE).any() or (np.diff(rows_TK, axis=1) > 0).any():
        raise ProbeError("the candidates' log-probabilities are not finite, at most 0 and in order")
    for logprob, token, row_ids, row in zip(scores.logprobs, token_ids, scores.topk_ids, rows_TK, strict=True):
        at = np.flatnonzero(row_ids == token)
        if at.size and abs(float(row[at[0]]) - float(logprob)) > SAME_ROW_TOLERANCE:
            raise ProbeError("a token's log-probability differs from its own among the candidates")
        if not at.size and float(logprob) > float(row[-1]) + SAME_ROW_TOLERANCE:
            raise ProbeError("a token that is no candidate is more likely than a candidate")


async def _scored(scorer: ForcedScorer, prompt: list[int], response: list[int], top_k: int) -> Any:
    try:
        return await scorer.score(prompt, response, top_k)
    except RefusedError as error:
        if top_k:
            raise ProbeError(
                f"the PRM engine refuses {top_k} candidates per token ({error.text[:160]}); lower topk_opd.top_k, or "
                "raise the engine's limit (vLLM: --max-logprobs)"
            ) from error
        raise ProbeError(f"the PRM engine refuses to score given tokens: {error}") from error


async def answers(client: EngineClient) -> bool:
    """Whether the engine is there at all."""
    try:
        await client.get("/v1/models")
    except (DependencyError, RefusedError):
        return False
    return True


__all__ = ["DEPENDENCY", "ProbeReport", "answers", "detect", "probe"]
