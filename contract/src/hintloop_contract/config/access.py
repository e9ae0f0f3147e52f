"""How the keys that clients present are written in a configuration: as plain strings, or as entries with a hash.

A plain key is hashed as it is read, so that no configuration object ever holds one. Looking keys up is `api_keys`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, SecretStr, field_validator, model_validator

from hintloop_contract.config.section import Section

#: What a hash is written with. A plain digest is enough for keys of `hintloop keys new`: they hold 256 random bits.
HASH_PREFIX = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def key_hash(key: str | bytes) -> str:
    """The hash of a key as an entry carries it: ``sha256:`` and 64 hex digits."""
    data = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    return HASH_PREFIX + hashlib.sha256(data).hexdigest()


class ApiKeyEntry(Section):
    """One key that clients may present: `hash`, or `key` in the clear (by `${VARIABLE}`), and what it allows."""

    name: str = ""
    """A word for people who read the configuration."""
    hash: SecretStr
    """`sha256:` and the 64 hex digits of the key's digest, as `hintloop keys new` prints it."""
    tenant: str = "default"
    """Whose traffic this is: separates sessions, reading and feedback. Letters, digits, `.`, `_` and `-`."""
    train: bool = True
    """False serves and shows this key's turns, but never trains on them."""

    @model_validator(mode="before")
    @classmethod
    def _hashed(cls, value: Any) -> Any:
        """Let a plain string, or an entry with `key`, become one with `hash`."""
        if isinstance(value, str):
            return {"hash": _hash_of_plain(value)}
        if isinstance(value, ApiKeyEntry):
            return value
        if not isinstance(value, dict):
            raise ValueError('each is a key in quotes, or an entry: { hash = "sha256:…", tenant = "acme" }')
        if ("key" in value) == ("hash" in value):
            raise ValueError("give either hash (of 'hintloop keys new') or key, and not both")
        if "key" not in value:
            return value
        rest = {name: item for name, item in value.items() if name != "key"}
        if not isinstance(value["key"], str):
            raise ValueError("key must be a string; put it in quotes")
        return {**rest, "hash": _hash_of_plain(value["key"])}

    @field_validator("tenant")
    @classmethod
    def _tenant_name(cls, value: str) -> str:
        if not _TENANT.fullmatch(value):
            raise ValueError(
                f"{value[:80]!r} is no tenant's name; use letters, digits, '.', '_' and '-', 64 at most, beginning "
                "with a letter or digit"
            )
        return value

    @model_validator(mode="after")
    def _well_formed(self) -> ApiKeyEntry:
        if not _HASH.fullmatch(self.hash.get_secret_value()):
            raise ValueError(
                "hash must be 'sha256:' and 64 lower-case hex digits; make an entry with 'hintloop keys new'"
            )
        return self


def _hash_of_plain(key: str) -> str:
    text = key.strip()
    if not text:
        raise ValueError("an API key is empty, which would let everyone in; give it a value, or remove the entry")
    if text.startswith(HASH_PREFIX):
        raise ValueError('a hash stands where a key is expected; write it as an entry: { hash = "sha256:…" }')
    if not text.isprintable():
        raise ValueError("an API key holds a line break or another character that no header can carry; leave it out")
    return key_hash(text)


def _entries(value: Any) -> Any:
    """Several keys in one string are separated by commas, as an environment variable has them."""
    if isinstance(value, dict):
        raise ValueError("one entry stands where a list is expected; put it between [ and ], or under [[…api_keys]]")
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("[", "{")):
        raise ValueError(
            "it begins like a JSON list and cannot be read as one; mend the JSON, or separate keys by commas"
        )
    keys = [word.strip() for word in value.split(",") if word.strip()]
    if not keys:
        raise ValueError("it is empty, which would let everyone in; unset it, or write [] if that is meant")
    return keys


def _consistent(entries: list[ApiKeyEntry]) -> list[ApiKeyEntry]:
    first: dict[str, ApiKeyEntry] = {}
    for entry in entries:
        before = first.setdefault(entry.hash.get_secret_value(), entry)
        if (before.tenant, before.train) != (entry.tenant, entry.train):
            raise ValueError(
                f"the same key is given to tenant {before.tenant!r} (train = {str(before.train).lower()}) and to "
                f"{entry.tenant!r} (train = {str(entry.train).lower()}); keep one of the two entries"
            )
    return entries


ApiKeys = Annotated[list[ApiKeyEntry], BeforeValidator(_entries), AfterValidator(_consistent)]
"""Keys of one door; empty leaves it open. A list of strings and entries, or one string with commas."""
