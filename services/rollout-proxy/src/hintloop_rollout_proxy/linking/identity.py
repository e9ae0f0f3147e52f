"""Ids that come with a request. Owns which names mean what; decides nothing: no id alone makes a session.

Agents share one session id between main line, side calls and sub-agents, or change it at a fork.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from hintloop_contract.messages import Capture

from hintloop_rollout_proxy.kept_headers import MAX_VALUE_LENGTH
from hintloop_rollout_proxy.linking.events import BodyIds

#: Headers by which a client tells us its session, in order; other names are an agent's own.
_OWN_SESSION = ("x-session-id",)
_NATIVE_SESSION = re.compile(r"(session[-_]?id|session-affinity|conversation[-_]?id|chat[-_]id)$")
_BRANCH = re.compile(r"(thread[-_]?id|agent[-_]?id)$")
_SIDE_KIND = re.compile(r"compact|summar|title|memor|flush")
#: Session keys of captures that are no session ids, by how they begin.
_NARROWING_KEYS = ("body:user:", "body:prompt_cache_key:")
_USER_ID = re.compile(r"_session_([A-Za-z0-9-]{8,})$")
_METADATA_SESSIONS = ("session_id", "thread_id", "conversation_id", "chat_id", "sessionId", "threadId")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, as far as said. ``branch`` tells threads and agents of one session apart; ``stated`` says that the
    session id was given to us as such; ``attempt`` counts a client's own retries."""

    session: str | None = None
    branch: str = ""
    stated: bool = False
    sub_agent: bool = False
    side: bool = False
    attempt: int = 0
    weak: frozenset[str] = frozenset()

    @property
    def line(self) -> tuple[str, str] | None:
        """Session and branch, or ``None`` when neither is known."""
        return (self.session or "", self.branch) if self.session or self.branch else None

    def forks(self, other: Identity) -> bool:
        """Whether both name sessions, and not the same."""
        return bool(self.session and other.session and self.session != other.session)

    def is_other_agent(self, other: Identity) -> bool:
        """Whether both belong to one session, but to different threads or agents of it."""
        return self.session is not None and self.session == other.session and self.branch != other.branch

    def bars(self, other: Identity) -> bool:
        """Whether ids say that the two are no attempts of one request."""
        return self.forks(other) or self.is_other_agent(other)


def read_identity(capture: Capture, ids: BodyIds) -> Identity:
    """What headers, body and session key say together."""
    headers = capture.identity
    own = next((headers[name] for name in _OWN_SESSION if headers.get(name)), None)
    native = [value for name, value in sorted(headers.items()) if _NATIVE_SESSION.search(name) and "parent" not in name]
    branches = [value for name, value in sorted(headers.items()) if _BRANCH.search(name) and "parent" not in name]
    session = own or ids.session or next(iter(native), None) or ids.native
    stated, weak = bool(own or ids.session), set(ids.weak)
    key = capture.session_key
    if session is None and key is not None:
        if key.startswith(_NARROWING_KEYS):
            weak.add(key)
        else:
            session, stated = key, True
    kinds = _request_kinds(headers)
    if session is None and branches:
        session = branches.pop()
    branch = "/".join(value for value in branches if value != session)
    parented = any("parent" in name for name in headers)
    return Identity(
        session=session,
        branch=branch,
        stated=stated or any(name.endswith("thread-id") for name in headers),
        sub_agent=bool(parented or any("agent" in name for name in headers)),
        side=any(_SIDE_KIND.search(kind) for kind in kinds),
        attempt=_attempt(headers),
        weak=frozenset(weak),
    )


def _request_kinds(headers: Mapping[str, str]) -> list[str]:
    """What kind of request a header says this is."""
    kinds = [value.lower() for name, value in headers.items() if "subagent" in name or "sub-agent" in name]
    for name, value in headers.items():
        if name.endswith("turn-metadata"):
            try:
                metadata = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                continue
            if isinstance(metadata, dict) and isinstance(metadata.get("request_kind"), str):
                kinds.append(metadata["request_kind"].lower())
    return kinds


def _attempt(headers: Mapping[str, str]) -> int:
    for name, value in headers.items():
        if name.endswith(("retry-count", "retry-attempt")) and value.strip().isdigit():
            return min(int(value.strip()[:6]), 1_000)
    return 0


def read_body_ids(body: Mapping[str, Any]) -> BodyIds:
    """Ids among a body's decoded members."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    session = _first_text(body, ("session_id",)) or _first_text(metadata, _METADATA_SESSIONS)
    conversation = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    if session is None and isinstance(conversation, str) and conversation:
        session = conversation
    weak = {
        f"{name}:{body[name]}"
        for name in ("user", "prompt_cache_key", "safety_identifier")
        if isinstance(body.get(name), str) and body[name]
    }
    native = None
    user_id = metadata.get("user_id")
    if isinstance(user_id, str) and user_id:
        native = _session_of_user_id(user_id)
        if native is None:
            weak.add(f"user_id:{user_id}")
    return BodyIds(session, native, frozenset(weak))


def _session_of_user_id(user_id: str) -> str | None:
    """Anthropic's ``metadata.user_id``: agents put a session into it, as JSON or as a suffix."""
    if user_id.startswith("{"):
        try:
            value = msgspec.json.decode(user_id)
        except (msgspec.DecodeError, RecursionError):
            return None
        return _first_text(value, ("session_id", "sessionId")) if isinstance(value, dict) else None
    found = _USER_ID.search(user_id)
    return found.group(1) if found else None


def _first_text(members: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = members.get(name)
        if isinstance(value, str) and value:
            return value[:MAX_VALUE_LENGTH]
    return None
