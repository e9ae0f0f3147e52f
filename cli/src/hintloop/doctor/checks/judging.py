"""The judge on built-in exchanges: hints of one to three concrete sentences, and scores that a person would give."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError

from hintloop.doctor.finding import Finding, Outcome, fail, ok, skipped, warn
from hintloop.doctor.look import Look

MOST_SENTENCES = 3
SENTENCE_END = re.compile(r"[.!?。!?](?:\s|$)")


@dataclass(frozen=True, slots=True)
class Triple:
    """A request, an answer, what followed; and what a person would say to it."""

    name: str
    request: str
    answer: str
    reaction: dict[str, Any]
    score: int
    hinted: bool
    about: tuple[str, ...] = field(default=())
    """Words of which a concrete hint has one."""


TRIPLES = (
    Triple(
        "complaint",
        "What is a comet?",
        "A comet is an icy body that orbits the Sun. It has a nucleus, a coma and often two tails. Many come from the "
        "Oort cloud, far beyond Neptune, and return after thousands of years.",
        {"role": "user", "content": "Too long. Please answer in one short sentence."},
        score=-1,
        hinted=True,
        about=("short", "sentence", "brief", "concise"),
    ),
    Triple(
        "correction",
        "Convert 3 miles to kilometres.",
        "3 miles are 4.2 kilometres.",
        {"role": "user", "content": "That's wrong: multiply by 1.609 instead of 1.4."},
        score=-1,
        hinted=True,
        about=("1.609", "multiply", "factor", "convert", "kilomet"),
    ),
    Triple(
        "praise",
        "Name the capital of Norway.",
        "Oslo.",
        {"role": "user", "content": "Perfect, thank you. That is exactly what I needed."},
        score=1,
        hinted=False,
    ),
)


@dataclass(slots=True)
class Opinions:
    """What the judge said to one exchange. ``votes``: why votes failed, each reason once."""

    triple: Triple
    score: int | None
    hint: str | None
    failed: list[str]
    votes: list[str]


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
        return [fail("judge", str(error), Cause.CONFIGURATION_INVALID)]
    needs = look.judge.needs
    if not needs.score and not (needs.hint and look.config.opd.enable_hint_extraction):
        return [skipped("judge", "this configuration asks it nothing")]
    opinions = []
    for triple in TRIPLES:
        try:
            opinions.append(await _ask(look, triple))
        except DependencyError as error:
            return [fail("judge", error.detail, _absent(error.detail))]
    look.hints = [opinion.hint for opinion in opinions if opinion.hint]
    findings = _votes(opinions)
    if needs.hint and look.config.opd.enable_hint_extraction:
        findings.append(_hints(opinions))
    if needs.score:
        findings.append(_scores(opinions))
    return findings


async def _ask(look: Look, triple: Triple) -> Opinions:
    from hintloop_judge.conversation import Exchange

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
    return Opinions(triple, judgement.score, judgement.hint, sorted(opinion.failed), votes)


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
    seen = f"{len(failed)} of {len(opinions)} exchanges have too few votes: {reasons}"
    return [fail("votes", seen, cause)] if failed else [warn("votes", f"some failed: {reasons}", cause)]


def _hints(opinions: list[Opinions]) -> Finding:
    rows = [{"exchange": o.triple.name, "next state": o.triple.reaction["content"], "hint": o.hint} for o in opinions]
    wanted = [opinion for opinion in opinions if opinion.triple.hinted]
    given = [opinion for opinion in wanted if opinion.hint]
    if not given:
        return fail("hints", f"none for any of {len(wanted)} plain complaints", Cause.NO_HINTS, rows)
    vague = [opinion.hint for opinion in given if not _concrete(opinion)]
    if len(vague) == len(given):
        return fail("hints", f"not concrete: {vague[0]!r}", Cause.HINTS_NOT_CONCRETE, rows)
    seen = f"{len(given)} of {len(wanted)} plain complaints have one"
    if vague or len(given) < len(wanted):
        cause = Cause.HINTS_NOT_CONCRETE if vague else Cause.NO_HINTS
        return warn("hints", seen, cause, rows)
    return ok("hints", f"{seen}, of one to {MOST_SENTENCES} concrete sentences", rows)


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
