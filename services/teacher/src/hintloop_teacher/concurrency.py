"""Doing several things at once against one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def all_of(*coroutines: Coroutine[Any, Any, Result]) -> list[Result]:
    """Results of all; when one fails the others end too, so that none goes on asking an engine that was given up."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
