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

from hintloop_teacher.dialects.base import Dialect, EngineFacts, Question
from hintloop_teacher.dialects.chat import CANNOT, ChatDialect
from hintloop_teacher.dialects.openai import OpenAiDialect
from hintloop_teacher.dialects.sglang import SglangDialect
from hintloop_teacher.dialects.vllm import VllmDialect
from hintloop_teacher.errors import ProbeError, ProbeReason, RefusedError, TeachError, UnsupportedError
from hintloop_teacher.http import EngineClient
from hintloop_teacher.limits import REPEAT_TOLERANCE, Limits, find_limits, probe_ids
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import Vocabulary, read_tokenizer, same_tokenizer

NUM_PROBE_TOKENS = 12


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found. ``checks``: name of each check to its result; ``tokenizer``: fingerprint of the student's, with
    which the engine was compared."""

    dialect: str
    version: str | None
    model: str
    max_input_len: int | None
    vocabulary_size: int
    top_k: int
    checks: dict[str, str] = field(default_factory=dict)
    url: str = ""
    tokenizer: str = ""
    limits: Limits | None = None

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
    try:
        dialect, facts = await _dialect(client, section, trusted)
        scorer = ForcedScorer(
            dialect,
            facts,
            vocabulary_size=vocabulary.size,
            max_concurrency=section.max_concurrency,
            chunk_tokens=section.score_chunk_tokens,
            num_ids=vocabulary.num_ids,
        )
        checks = await _checks(scorer, vocabulary, trusted, top_k)
        limits = await find_limits(scorer, top_k) if dialect.takes_ids else None
    except (TeachError, UnsupportedError, RefusedError) as error:
        raise ProbeError(f"{client.root_url} cannot score given tokens: {error}") from error
    report = ProbeReport(
        dialect=dialect.name,
        version=facts.version,
        model=facts.model,
        max_input_len=facts.max_input_len,
        vocabulary_size=vocabulary.size,
        top_k=top_k,
        checks=checks,
        url=client.root_url,
        tokenizer=vocabulary.fingerprint,
        limits=limits,
    )
    return scorer, report


async def _dialect(client: EngineClient, section: PrmSection, trusted: bool) -> tuple[Dialect, EngineFacts]:
    engine = section.engine if section.engine != "auto" else await detect(client)
    dialect: Dialect = OpenAiDialect(client, trust_positions=trusted)
    if engine == "sglang":
        dialect = SglangDialect(client)
    elif engine == "vllm":
        dialect = VllmDialect(client)
    facts = await dialect.facts(section.teacher_model)
    if engine != "openai":
        return dialect, facts
    try:
        await dialect.score(facts.model, Question([1], [2]))
    except RefusedError as error:
        if error.status not in (400, 404, 405, 422):
            raise ProbeError(f"{client.root_url} refuses to score given tokens: {error}") from error
        chat = ChatDialect(client)
        try:
            return chat, await chat.facts(section.teacher_model)
        except RefusedError:
            raise UnsupportedError(f"its completions route: {error}") from error
        except UnsupportedError as unsupported:
            raise UnsupportedError(f"{unsupported}. Its completions route: {error}") from error
    except TeachError:
        pass  # it answers: the checks say what is wrong
    return dialect, facts


async def _checks(scorer: ForcedScorer, vocabulary: Vocabulary, trusted: bool, top_k: int) -> dict[str, str]:
    if isinstance(scorer.dialect, ChatDialect):
        return await _chat_checks(scorer.dialect, scorer.facts, vocabulary)
    return {
        "vocabulary": await _check_vocabulary(scorer, vocabulary, trusted),
        "forced_scoring": await _check_alignment(scorer),
        "top_k": await _check_top_k(scorer, top_k),
    }


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
            "share vocabulary and special ids: take a teacher of the student's family",
            ProbeReason.VOCABULARY,
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
                "tokenizer; teacher and student must share vocabulary and special ids",
                ProbeReason.VOCABULARY,
            )
    return "equal to the student's"


def _unproven(scorer: ForcedScorer, trusted: bool) -> str:
    if trusted:
        return "equal to the student's by prm.teacher_tokenizer_path"
    if scorer.dialect.proves_ids:
        return "proven by echoed ids alone"
    raise ProbeError(
        "the PRM engine's vocabulary cannot be seen; set prm.teacher_tokenizer_path to its tokenizer",
        ProbeReason.VOCABULARY,
    )


async def _check_alignment(scorer: ForcedScorer) -> str:
    """Score one sequence three ways: whole, from the middle, and with its last token changed."""
    ids = probe_ids(scorer.vocabulary_size, NUM_PROBE_TOKENS)
    middle = NUM_PROBE_TOKENS // 2
    whole = (await _scored(scorer, ids[:1], ids[1:], 0)).logprobs
    later = (await _scored(scorer, ids[:middle], ids[middle:], 0)).logprobs
    other = [*ids[1:-1], (ids[-1] + 1) % scorer.vocabulary_size]
    changed = (await _scored(scorer, ids[:1], other, 0)).logprobs
    if float(np.abs(whole[middle - 1 :] - later).max()) > REPEAT_TOLERANCE:
        raise ProbeError(
            "the same tokens score differently when the scored part starts later: scores are shifted",
            ProbeReason.SHIFTED,
        )
    if float(np.abs(whole[:-1] - changed[:-1]).max()) > REPEAT_TOLERANCE:
        raise ProbeError(
            "changing the last token changes the scores of those before it: scores are shifted", ProbeReason.SHIFTED
        )
    if float(whole[-1]) == float(changed[-1]):
        raise ProbeError("changing the last token leaves its score as it was: scores are shifted", ProbeReason.SHIFTED)
    return "aligned"


async def _check_top_k(scorer: ForcedScorer, top_k: int) -> str:
    """Score the engine's own best candidates: each must score what its row said, and no token above them."""
    if top_k == 0:
        return "not needed"
    ids = [(104729 * i + 11) % scorer.vocabulary_size for i in range(1, 5)]
    scores = await _scored(scorer, ids[:2], ids[2:], top_k)
    for position in range(2, len(ids)):
        best, said = int(scores.topk_ids[position - 2, 0]), float(scores.topk_logprobs[position - 2, 0])
        again = await _scored(scorer, ids[:position], [best], top_k)
        found = float(again.logprobs[0])
        if abs(found - said) > REPEAT_TOLERANCE:
            raise ProbeError(
                f"the engine's best candidate {best} has log-probability {said:.4f} among the candidates and "
                f"{found:.4f} when it is scored: the candidates are not of the scored tokens",
                ProbeReason.TOP_K,
            )
    return f"{top_k} candidates"


async def _scored(scorer: ForcedScorer, prompt: list[int], response: list[int], top_k: int) -> Any:
    try:
        return await scorer.score(prompt, response, top_k)
    except DependencyError:
        if not top_k:
            raise
        return await _scored_or_too_many(scorer, prompt, response, top_k)
    except RefusedError as error:
        if top_k:
            raise ProbeError(
                f"the PRM engine refuses {top_k} candidates per token ({error.text[:160]}); lower topk_opd.top_k, or "
                "raise the engine's limit (vLLM: --max-logprobs)",
                ProbeReason.TOP_K,
            ) from error
        raise ProbeError(f"the PRM engine refuses to score given tokens: {error}") from error


async def _scored_or_too_many(scorer: ForcedScorer, prompt: list[int], response: list[int], top_k: int) -> Any:
    """Some engines answer 500 to what is too much for them; one that is away fails without candidates, too."""
    await scorer.score(prompt, response)
    try:
        return await scorer.score(prompt, response, top_k)
    except DependencyError as error:
        raise ProbeError(
            f"the PRM engine scores given tokens, but fails when {top_k} candidates per token are asked, too "
            f"({error.detail:.160}); lower topk_opd.top_k",
            ProbeReason.TOP_K,
        ) from error


async def _chat_checks(dialect: ChatDialect, facts: EngineFacts, vocabulary: Vocabulary) -> dict[str, str]:
    """Two conversations that differ in their last word: its ids are the student's, and only its scores change."""
    asked = ("What is rain?", "Water", "Fire")
    found = [await dialect.echoed(facts.model, asked[0], answer) for answer in asked[1:]]
    for answer, entries in zip(asked[1:], found, strict=True):
        text = vocabulary.decode([token for token, _ in entries if token is not None])
        if asked[0] not in text or answer not in text.split(asked[0], 1)[1]:
            raise ProbeError(
                f"{CANNOT}. It echoes ids which in the student's tokenizer do not read {answer!r}",
                ProbeReason.VOCABULARY,
            )
    for (token, value), (other, again) in zip(*found, strict=False):
        if token != other:
            break
        if value is not None and again is not None and abs(value - again) > REPEAT_TOLERANCE:
            raise ProbeError(
                "changing the last word changes the scores of the tokens before it: scores are shifted",
                ProbeReason.SHIFTED,
            )
    return {"vocabulary": "proven by echoed ids alone", "forced_scoring": "whole conversations, checked by their ids"}
