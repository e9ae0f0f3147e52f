"""Who may come in, for every door of Hintloop: looks a presented key up among the configured ones.

Owns comparing and making keys. Only hashes are held; reading them from a configuration is `config.access`.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hintloop_contract.config.access import HASH_PREFIX, ApiKeyEntry, key_hash

#: Begins every key that we make, so that scanners for leaked secrets can know it.
KEY_PREFIX = "hl-"
KEY_BYTES = 32
_CREDENTIAL = slice(len(HASH_PREFIX), len(HASH_PREFIX) + 16)


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    """Who presented a key.

    ``credential`` separates clients and reveals nothing: the first 16 hex digits of the key's SHA-256, or empty
    without a key. ``train`` is false when this key's turns must not be trained.
    """

    credential: str = ""
    tenant: str = "default"
    train: bool = True


class KeyRing:
    """The keys of one door. A ring without keys lets everyone in."""

    def __init__(self, entries: Sequence[ApiKeyEntry] = ()) -> None:
        """Hold ``entries``, as ``proxy.api_keys`` or ``prm.api_keys`` have them."""
        self._known: dict[bytes, KeyIdentity] = {}
        for entry in entries:
            text = entry.hash.get_secret_value()
            self._known[text.encode()] = KeyIdentity(text[_CREDENTIAL], entry.tenant, entry.train)

    @property
    def checks_keys(self) -> bool:
        """Whether a key must be presented."""
        return bool(self._known)

    def identify(self, presented: str | bytes) -> KeyIdentity | None:
        """Who presented this key (empty: none); ``None`` when the ring has keys and this is none of them."""
        digest = key_hash(presented)
        if not self._known:
            return KeyIdentity(digest[_CREDENTIAL] if presented else "")
        data = digest.encode()
        found = None
        # Every entry is compared, so that the time taken says nothing about which one is near.
        for known, identity in self._known.items():
            if hmac.compare_digest(data, known):
                found = identity
        return found


def presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key of ``Authorization: Bearer KEY``, ``x-api-key`` or ``api-key``; empty when none of them holds one.

    ``headers`` have names in lower case. Bytes, because keys are hashed as they came: what frameworks make of other
    characters than ASCII would be another key.
    """
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key.strip():
        return key.strip()
    return headers.get(b"x-api-key", b"").strip() or headers.get(b"api-key", b"").strip()


def new_key() -> str:
    """A fresh key: ``hl-`` and 256 random bits in 43 characters that are safe in headers and shells."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
