"""The headers that a capture keeps, by which the linker tells who asked. Owns which; `linking.identity` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

MAX_NAME_LENGTH, MAX_VALUE_LENGTH = 64, 256
#: Headers that are kept with a capture, by what their names end in or hold.
_KEPT = re.compile(
    r"(session[-_]?id|session-affinity|conversation[-_]?id|chat[-_]id|thread[-_]?id|agent[-_]?id|retry-(count|attempt)"
    r"|turn-metadata)$|sub-?agent|parent[-_](session|thread|agent|conversation)"
)


def identity_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The headers that a capture keeps; ``headers`` has lower-case names."""
    found = {}
    for name, value in headers.items():
        text = _kept_name(name) if len(name) <= MAX_NAME_LENGTH else None
        if text is not None:
            found[text] = value.decode("latin-1")[: MAX_VALUE_LENGTH * (8 if text.endswith("metadata") else 1)]
    return found


@lru_cache(1024)
def _kept_name(name: bytes) -> str | None:
    """The name of a header that is kept; ``None`` for any other. Clients send the same few with every request."""
    text = name.decode("latin-1").lower()
    return text if _KEPT.search(text) else None
