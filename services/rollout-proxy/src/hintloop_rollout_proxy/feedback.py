"""``POST /v1/feedback``: what a person or a program says of an answer, outside the conversation.

Owns reading and answering the request. It becomes a capture of its own (``api = "feedback"``) in the same stream, so
that the linker meets it in order; finding the turn that it speaks of is the linker's business.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping

import msgspec
from hintloop_contract.ids import new_id
from hintloop_contract.messages import Capture

from hintloop_rollout_proxy.asgi import JSON_HEADERS, Send, send_whole
from hintloop_rollout_proxy.clock import RedisClock
from hintloop_rollout_proxy.errors import BadRequestError
from hintloop_rollout_proxy.gate import Client
from hintloop_rollout_proxy.intake import Intake
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import Parcel

PATH = "/v1/feedback"
API = "feedback"
#: What names the answer, the narrowest first.
TARGETS = ("response_id", "turn_id", "session_id")
MEMBERS = (*TARGETS, "score", "text")
SCORES = (-1, 0, 1)
MAX_ID_LENGTH = 512
MAX_TEXT_LENGTH = 20_000
MAX_IDEMPOTENCY_KEY_BYTES = 255
#: Ids of feedback that came with an idempotency key are derived below this one, so that every replica agrees.
NAMESPACE = uuid.UUID("2c9b8a3e-6f53-4d0f-9d3a-4b7f5f0b6c11")


class Feedback(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of feedback, as the capture's request carries it.

    Example: ``Feedback(response_id="chatcmpl-1", score=-1, text="One short sentence, please.")``.
    """

    response_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    score: int | None = None
    """-1, 0 or 1."""
    text: str | None = None


def read_feedback(body: bytes) -> Feedback:
    """Raises ``BadRequestError``, which names the member, its value and the fix."""
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequestError("the body is no JSON; send an object with response_id and a score or a text") from None
    if not isinstance(members, dict):
        raise BadRequestError(f"the body is a JSON {type(members).__name__}; send an object")
    for name in members:
        if name not in MEMBERS:
            near = difflib.get_close_matches(name, MEMBERS, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(MEMBERS)}"
            raise BadRequestError(f"unknown member {name[:40]!r}; {meant}")
    ids = {name: _id(members, name) for name in TARGETS}
    if not any(ids.values()):
        raise BadRequestError(f"nothing says which answer is meant; send one of {', '.join(TARGETS)}")
    score, text = _score(members.get("score")), _text(members.get("text"))
    if score is None and text is None:
        raise BadRequestError("there is neither score nor text; send score (-1, 0 or 1), text, or both")
    return Feedback(**ids, score=score, text=text)


def _id(members: Mapping[str, object], name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID_LENGTH:
        raise BadRequestError(f"{name} = {_shown(value)} is no text of 1 to {MAX_ID_LENGTH} characters")
    return value


def _score(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in SCORES:
        raise BadRequestError(
            f"score = {_shown(value)} is not -1, 0 or 1; map your scale to these (a thumb up is 1, a thumb down -1)"
        )
    return int(value)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise BadRequestError("text is empty or no text; leave it out, or send what was said of the answer")
    if len(value) > MAX_TEXT_LENGTH:
        raise BadRequestError(f"text has {len(value)} characters, {MAX_TEXT_LENGTH} are allowed; send less")
    return value


def _shown(value: object) -> str:
    return f"{value!r}"[:40]


def feedback_id(client: Client, idempotency_key: bytes) -> str:
    """A new id, or with an idempotency key always the same one for this client: the stream takes each id once."""
    if not idempotency_key:
        return new_id()
    if len(idempotency_key) > MAX_IDEMPOTENCY_KEY_BYTES:
        raise BadRequestError(
            f"Idempotency-Key has {len(idempotency_key)} bytes, {MAX_IDEMPOTENCY_KEY_BYTES} are allowed; send less"
        )
    parts = (client.tenant, client.credential, idempotency_key.hex())
    return str(uuid.uuid5(NAMESPACE, "/".join(parts)))


class FeedbackHandler:
    """Serves ``POST /v1/feedback``."""

    def __init__(self, intake: Intake, clock: RedisClock, metrics: ProxyMetrics) -> None:
        """Hand feedback to ``intake``."""
        self._intake = intake
        self._metrics = metrics
        self._clock = clock

    async def serve(self, client: Client, headers: Mapping[bytes, bytes], body: bytes, send: Send) -> int:
        """Take one piece of feedback; the HTTP status. Raises ``BadRequestError``."""
        feedback = read_feedback(body)
        turn_id = feedback.turn_id
        if turn_id is None and feedback.response_id is not None:
            turn_id = self._intake.turn_of(client.tenant, feedback.response_id)
        own_id = feedback_id(client, headers.get(b"idempotency-key", b""))
        now_ms = self._clock.now_ms()
        capture = Capture(
            turn_id=own_id,
            tenant=client.tenant,
            credential=client.credential,
            api=API,
            engine="",
            engine_url="",
            request=msgspec.json.encode(feedback),
            start_ms=now_ms,
            end_ms=now_ms,
        )
        parcels = [Parcel(capture, headers.get(b"traceparent", b"").decode("latin-1"))]
        await self._intake.store(parcels)
        for parcel in parcels:
            await self._intake.put(parcel)
        self._metrics.feedback.labels("none" if feedback.score is None else str(feedback.score)).inc()
        attached = {"response_id": feedback.response_id, "turn_id": turn_id, "session_id": feedback.session_id}
        answer = {"id": own_id, "object": "feedback", "attached_to": attached}
        await send_whole(send, 202, JSON_HEADERS, msgspec.json.encode(answer))
        return 202
