"""Readiness over HTTP."""

from __future__ import annotations

import aiohttp

from hintloop.local.processes import Check


def http_ready(url: str) -> Check:
    """A check that is content when ``url`` answers 200."""

    async def check() -> str | None:
        timeout = aiohttp.ClientTimeout(total=5.0)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                return None if response.status == 200 else f"{url} answers {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{url}: {type(error).__name__}"

    return check
