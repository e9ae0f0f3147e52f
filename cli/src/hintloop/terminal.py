"""Text that others wrote (agents, engines, judges), fit to be shown: nothing in it moves a cursor or turns a line."""

from __future__ import annotations

import re

#: C0 and C1 controls but tabs and line breaks, and the marks that change the direction of writing.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    r"""``text`` with every control character spelled out, as ``\u001b``; JSON stays JSON."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
