"""Lets callers of the `_prm_url` routes in: a FastAPI dependency over the contract's key ring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastapi import HTTPException, Request
from hintloop_contract.api_keys import KeyIdentity, KeyRing, presented_key
from hintloop_contract.config.access import ApiKeyEntry
from hintloop_contract.problems import problem


def require_key(entries: Sequence[ApiKeyEntry]) -> Callable[[Request], Awaitable[KeyIdentity]]:
    """A dependency that gives the caller's identity, or answers 401. Without ``entries`` everyone may call."""
    keys = KeyRing(entries)

    async def caller(request: Request) -> KeyIdentity:
        identity = keys.identify(presented_key(dict(request.headers.raw)))
        if identity is None:
            message = "the API key is missing or unknown; send one of prm.api_keys as 'Authorization: Bearer KEY'"
            detail = problem("unauthorized", message)
            raise HTTPException(401, detail, headers={"WWW-Authenticate": "Bearer"})
        return identity

    return caller
