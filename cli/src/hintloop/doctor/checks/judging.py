"""The judge on built-in exchanges: hints of one to three concrete sentences, and scores that a person would give."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop.doctor.checks.refused import cause_of
from hintloop.doctor.checks.triples import TRIPLES, Triple
from hintloop.doctor.finding import Finding, Outcome, fail, ok, skipped, warn
from hintloop.doctor.look import Look

MOST_SENTENCES = 3
#: How engines refuse a question to a model that they do not have, where they do not answer 404.
NO_MODEL = re.compile(r"refused the question .{0,120}\bmodel\b.{0,80}(?:not found|not exist|unknown|not served)", re.I)
SENTENCE_END = re.compile(r"[.!?。!?](?:\s|$)")


@dataclass(slots=True)
class Opinions:
    """What the judge said to one exchange. ``votes``: why votes failed, each reason once."""

    triple: Triple
    score: int | None
    hint: str | None
    failed: list[str]
    votes: list[str]
    rejected: list[str] = field(default_factory=list)
    """Hints that votes offered and that cannot be used, each with the reason."""


async def check(look: Look) -> list[Finding]:
    """Findings of the judge."""
    from hintloop_judge.wiring import build_deps

    # What is asked here is nobody's turn: its votes are not to be kept for one.
    prm = look.config.prm.model_copy(update={"judge_cache_s": 0})
    try:
        look.judge = await build_deps(
            look.config.model_copy(update={"prm": prm}), look.broker, directory=look.loaded.directory
        )
    except HintloopError as error:
        return [fail("judge", str(error), cause_of(str(error)))]
    needs = look.judge.needs
    if not needs.score and not (needs.hint and look.config.opd.enable_hint_extraction):
        return [skipped("judge", "this configuration asks it nothing")]
    opinions = []
    for triple in TRIPLES:
        try:
            opinions.append(await _ask(look, triple))
        except DependencyError as error:
            return [fail("judge", error.detail, _absent(error.detail))]
    findings = _votes(opinions)
    if needs.hint and look.config.opd.enable_hint_extraction:
        hints = _hints(opinions)
        if not look.config.opd.drop_sample_without_hint and any(f.outcome is Outcome.FAIL for f in (*findings, hints)):
            seen = "the judge gives no usable hint (below), and opd.drop_sample_without_hint is false: all are trained"
            findings.insert(0, fail("turns without a hint", seen, Cause.UNHINTED_TURNS_TRAINED))
        findings.append(hints)
    if needs.score:
        findings.append(_scores(opinions))
    return findings


async def _ask(look: Look, triple: Triple) -> Opinions:
    from hintloop_judge.conversation import Exchange
    from hintloop_judge.selection import hint_problem

    assert look.judge is not None
    exchange = Exchange(
        ({"role": "user", "content": triple.request},),
        {"role": "assistant", "content": triple.answer},
        (triple.reaction,),
        (),
    )
    needs = look.judge.needs
    hint = needs.hint and look.config.opd.enable_hint_extraction
    opinion = await look.judge.backend.judge(exchange, score=needs.score, hint=hint)
    judgement = opinion.judgement
    reasons = dict.fromkeys(vote.failed for vote in judgement.votes if vote.failed)
    votes = [reason for reason in reasons if reason]
    offered = dict.fromkeys(vote.hint for vote in judgement.votes if vote.hint)
    rejected = [
        f"{text[:80]!r} is {problem}"
        for text in offered
        if text and (problem := hint_problem(text, triple.answer, look.config.opd))
    ]
    return Opinions(triple, judgement.score, judgement.hint, sorted(opinion.failed), votes, rejected)


def _absent(detail: str) -> Cause:
    if re.search(r"answered 40[123]\b", detail):
        return Cause.JUDGE_KEY_WRONG
    if re.search(r"answered 404\b|names no model|not served|does not exist", detail):
        return Cause.JUDGE_MODEL_MISSING
    return Cause.JUDGE_ENGINE_AWAY


def _votes(opinions: list[Opinions]) -> list[Finding]:
    failed = [opinion for opinion in opinions if opinion.failed]
    reasons = "; ".join(dict.fromkeys(reason for opinion in opinions for reason in opinion.votes))
    if not reasons:
        return [ok("votes", "all could be read")]
    cause = Cause.VOTES_CUT if "cut by the token limit" in reasons else Cause.VOTES_FAIL
    if NO_MODEL.search(reasons):
        cause = Cause.JUDGE_MODEL_MISSING
    seen = f"{len(failed)} of {len(opinions)} exchanges have too few votes: {reasons}"
    return [fail("votes", seen, cause)] if failed else [warn("votes", f"some failed: {reasons}", cause)]


def _hints(opinions: list[Opinions]) -> Finding:
    rows = [{"exchange": o.triple.name, "next state": o.triple.reaction["content"], "hint": o.hint} for o in opinions]
    wanted = [opinion for opinion in opinions if opinion.triple.hinted]
    given = [opinion for opinion in wanted if opinion.hint]
    if not given:
        return _none(wanted, rows)
    vague = [opinion.hint for opinion in given if not _concrete(opinion)]
    if len(vague) == len(given):
        return fail("hints", f"not concrete: {vague[0]!r}", Cause.HINTS_NOT_CONCRETE, rows)
    seen = f"{len(given)} of {len(wanted)} plain complaints have one"
    if vague or len(given) < len(wanted):
        cause = Cause.HINTS_NOT_CONCRETE if vague else Cause.NO_HINTS
        return warn("hints", seen, cause, rows)
    return ok("hints", f"{seen}, of one to {MOST_SENTENCES} concrete sentences", rows)


def _none(wanted: list[Opinions], rows: list[dict[str, str | None]]) -> Finding:
    """No hint at all: none was offered, or what was offered says nothing."""
    rejected = [reason for opinion in wanted for reason in opinion.rejected]
    seen = f"none for any of {len(wanted)} plain complaints"
    if rejected:
        seen += f"; rejected: {'; '.join(rejected[:3])}"
    vague = any(reason.endswith("generic") for reason in rejected)
    return fail("hints", seen, Cause.HINTS_NOT_CONCRETE if vague else Cause.NO_HINTS, rows)


def _concrete(opinion: Opinions) -> bool:
    hint = (opinion.hint or "").lower()
    # A point inside a number ends no sentence.
    sentences = max(1, len(SENTENCE_END.findall(hint)))
    return sentences <= MOST_SENTENCES and any(word in hint for word in opinion.triple.about)


def _scores(opinions: list[Opinions]) -> Finding:
    rows = [{"exchange": o.triple.name, "next state": o.triple.reaction["content"], "score": o.score} for o in opinions]
    opposite = [o for o in opinions if o.score is not None and o.score * o.triple.score < 0]
    right = [o for o in opinions if o.score == o.triple.score]
    seen = f"{len(right)} of {len(opinions)} as a person would score"
    if opposite or not right:
        return Finding("scores", Outcome.FAIL, seen, Cause.SCORES_WRONG, rows)
    return ok("scores", seen, rows) if len(right) == len(opinions) else warn("scores", seen, Cause.SCORES_WRONG, rows)
