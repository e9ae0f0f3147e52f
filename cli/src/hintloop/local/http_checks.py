"""Readiness over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from hintloop.local.processes import Check

#: Reads a JSON answer: ``None`` when it is content, else why not.
Reading = Callable[[Any], str | None]


def http_ready(url: str, reading: Reading | None = None) -> Check:
    """A check that is content when ``url`` answers 200, and ``reading``, if any, is content with the JSON."""

    async def check() -> str | None:
        timeout = aiohttp.ClientTimeout(total=5.0)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                if response.status != 200:
                    return f"{url} answers {response.status}"
                return None if reading is None else reading(await response.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{url}: {type(error).__name__}"

    return check
