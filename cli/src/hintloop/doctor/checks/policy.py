"""Proxy and policy engines: whether answers can be captured exactly."""

from __future__ import annotations

from typing import Any

from hintloop_contract.diagnosis.causes import Cause
from hintloop_contract.errors import HintloopError

from hintloop.doctor.checks import agreement
from hintloop.doctor.checks.asking import teacher_of
from hintloop.doctor.finding import Finding, Outcome, fail, ok, warn
from hintloop.doctor.look import Look, address


async def check(look: Look) -> list[Finding]:
    """Findings of the proxy and of every engine that it knows."""
    url = address(look.config.proxy.host, look.config.proxy.port)
    answer = await look.get(f"{url}/hintloop/ready")
    if not isinstance(answer.document, dict) or "engines" not in answer.document:
        seen = answer.problem or f"{url} answers, but is no rollout proxy"
        return [fail("proxy", seen, Cause.PROXY_AWAY)]
    findings = [ok("proxy", url)]
    for engine in answer.document["engines"]:
        found = _engine(engine)
        findings += found
        if found[0].outcome is not Outcome.FAIL:
            url = str(engine["url"]).rstrip("/")
            look.spaces[url] = str(engine["behaviour_space"])
            findings += await _sampling(look, url)
    return findings


async def _sampling(look: Look, url: str) -> list[Finding]:
    if url not in [address.rstrip("/") for address in look.config.engine_urls]:
        return []
    try:
        await teacher_of(look)
    except HintloopError:
        # Said by the next station.
        return []
    return [await agreement.sampling(look, url)]


def _engine(engine: dict[str, Any]) -> list[Finding]:
    name, url = "policy engine", engine["url"]
    if not engine["healthy"]:
        return [fail(name, f"{url}: {engine['problem'] or 'not healthy'}", Cause.POLICY_ENGINE_AWAY)]
    if engine["behaviour_space"] is None:
        return [fail(name, f"{url}: {engine['problem'] or 'not probed yet'}", Cause.CAPTURE_UNPROVEN)]
    seen = f"{url} serves {engine['model']}; exact ids, log-probabilities are {engine['behaviour_space']}"
    if not engine["defaults_neutral"]:
        return [warn(name, seen, Cause.SAMPLING_DEFAULTS_UNPROVEN)]
    return [ok(name, seen)]
