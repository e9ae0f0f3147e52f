"""Who may ask: checks the proxy's own API keys, when it has any, and names the credential behind a request."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hintloop_rollout_proxy.errors import UnauthorizedError


@dataclass(frozen=True, slots=True)
class Client:
    """``credential`` separates clients and reveals nothing: 16 hex digits of the key's SHA-256, or empty."""

    credential: str
    tenant: str = "default"


def presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of ``Authorization: Bearer``, ``x-api-key`` or ``api-key``; empty when there is none."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key:
        return key.strip()
    return headers.get(b"x-api-key", b"") or headers.get(b"api-key", b"")


class Gate:
    """Lets requests in."""

    def __init__(self, api_keys: Sequence[str]) -> None:
        """Without ``api_keys`` every request is let in and the client's key passes through."""
        self._keys = [key.encode() for key in api_keys]

    @property
    def checks_keys(self) -> bool:
        """Whether the client's key ends here."""
        return bool(self._keys)

    def admit(self, headers: Mapping[bytes, bytes]) -> Client:
        """The client behind a request; raises ``UnauthorizedError``."""
        key = presented_key(headers)
        # Every key is compared, so that the time taken says nothing about which one is near.
        if self._keys and not any([hmac.compare_digest(key, known) for known in self._keys]):
            raise UnauthorizedError(
                "the API key is missing or unknown; send one of proxy.api_keys as 'Authorization: Bearer KEY'"
            )
        return Client(hashlib.sha256(key).hexdigest()[:16] if key else "")
