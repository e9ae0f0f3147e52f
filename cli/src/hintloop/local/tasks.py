"""Tasks side by side, of which the first failure counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all to their end; the first error ends the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
