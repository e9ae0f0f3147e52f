"""Whether the policy engine renders captured messages to the ids that were captured: what hints are put into."""

from __future__ import annotations

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import DependencyError, HintloopError
from hintloop_contract.tensors import unpack

from hintloop.doctor.checks.asking import PolicyEngine
from hintloop.doctor.finding import Finding, fail, ok, skipped
from hintloop.doctor.look import Look

NAME = "rendering"
#: Captured turns that are rendered again.
NUM_TURNS = 4
#: APIs whose requests hold messages; others are served by ids or bare text.
WITH_MESSAGES = ("chat_completions", "messages", "responses")
PROBE = [{"role": "system", "content": "Answer in English."}, {"role": "user", "content": "Name one river."}]


async def check(look: Look) -> list[Finding]:
    """Captured turns rendered again; without any, a question of the doctor's own."""
    try:
        return [await _captured(look) or await _probed(look)]
    except DependencyError as error:
        return [skipped(NAME, f"no policy engine renders: {error.detail}")]
    except HintloopError as error:
        return [skipped(NAME, f"not compared: {error!s:.200}")]


async def _captured(look: Look) -> Finding | None:
    from hintloop_teacher.rendering import read_request

    assert look.teacher is not None
    turns = list(look.recent.records.values()) if look.recent else []
    found: list[str] = []
    compared = 0
    for turn, record in reversed([pair for pair in turns if pair[0].api in WITH_MESSAGES]):
        if compared == NUM_TURNS:
            break
        captured = [int(token) for token in unpack(record.prompt_ids)]
        url = turn.engine_url.rstrip("/")
        ours = [address.rstrip("/") for address in look.config.engine_urls]
        url = url if url in ours else ours[0]
        request = read_request(turn.engine, url, record.messages, record.tools, record.rendering, captured)
        rendered = await look.teacher.renderer.render(request, request.messages)
        compared += 1
        if rendered != captured:
            found.append(_difference(rendered, captured))
    if not compared:
        return None
    if 2 * len(found) > compared:
        seen = f"{len(found)} of {compared} captured prompts are rendered to other ids now: {found[0]}"
        return fail(NAME, seen, Cause.RENDERING_DIFFERS)
    return ok(NAME, f"{compared - len(found)} of {compared} captured prompts are rendered to the very ids again")


async def _probed(look: Look) -> Finding:
    from hintloop_teacher.rendering import Request

    assert look.teacher is not None
    url = look.config.engine_urls[0].rstrip("/")
    served = await PolicyEngine(look, url).chat_prompt_ids(PROBE)
    if served is None:
        return skipped(NAME, f"no turn was captured yet, and {url} does not tell a prompt's ids")
    request = Request(look.config.rollout.engine, url, PROBE, None, {}, served)
    rendered = await look.teacher.renderer.render(request, PROBE)
    if rendered != served:
        seen = f"{url} answers a question and renders it otherwise: {_difference(rendered, served)}"
        return fail(NAME, seen, Cause.RENDERING_DIFFERS)
    return ok(NAME, f"{url} renders a question to the very {len(served)} ids that it answers")


def _difference(rendered: list[int], captured: list[int]) -> str:
    pairs = zip(rendered, captured, strict=False)
    where = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(rendered), len(captured)))
    return f"{len(rendered)} ids, {len(captured)} were captured; they differ from place {where} on"
