"""Masks secrets and personal data in captures before anything is stored (``proxy.scrub``).

Owns which members of a capture are masked, and the stage that does it in a thread, between the handlers and the
writer. What counts as sensitive stands in `sensitive`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog
from hintloop_contract.config.schema import ProxySection
from hintloop_contract.messages import Capture, DropReason

from hintloop_rollout_proxy.feedback import API as FEEDBACK
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.intake import Sink
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.parcels import Parcel
from hintloop_rollout_proxy.receipts import Receipts
from hintloop_rollout_proxy.sensitive import SECRET_MEMBER, Finder, mask, personal_finders, secret_finders

QUEUE_LENGTH = 1024
#: Texts whose outcome is remembered: every request of a session repeats those before it.
REMEMBERED_TEXTS = 20_000

log = structlog.get_logger()


class Scrubber:
    """Masks captures. Not to be used by two threads at once."""

    def __init__(self, finders: Sequence[Finder], *, secrets: bool, train_scrubbed: bool) -> None:
        """``secrets``: members that name a secret are masked too. ``train_scrubbed`` keeps the token ids."""
        self._finders = finders
        self._secrets = secrets
        self._train = train_scrubbed
        self._seen: OrderedDict[bytes, str | None] = OrderedDict()

    def text(self, text: str) -> str:
        """One masked text; the very same one when there is nothing to mask."""
        if len(text) < 4:
            return text
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            self._seen.move_to_end(digest)
            return self._seen[digest] or text
        masked = mask(text, self._finders, private_keys=self._secrets)
        self._seen[digest] = None if masked == text else masked
        if len(self._seen) > REMEMBERED_TEXTS:
            self._seen.popitem(last=False)
        return masked

    def value(self, value: Any) -> Any:
        """A JSON value with its texts masked, member names included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name): self._member(name, item) for name, item in value.items()}
        return value

    def _member(self, name: str, item: Any) -> Any:
        if self._secrets and isinstance(item, str) and item and SECRET_MEMBER.search(name):
            return "[secret]"
        return self.value(item)

    def document(self, data: bytes) -> bytes:
        """JSON bytes, masked; untouched when there is nothing to mask."""
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = data.decode(errors="replace")
            masked_text = self.text(text)
            return data if masked_text == text else masked_text.encode()
        masked = self.value(value)
        return data if masked == value else msgspec.json.encode(masked)

    def capture(self, capture: Capture) -> Capture:
        """The capture as it may be stored. Where something was masked, ids and log-probabilities would still tell it:
        they are taken out, and the turn drops as ``scrubbed``, unless ``train_scrubbed``."""
        changes: dict[str, Any] = {}
        for name in ("request", "chat_request", "answer"):
            data = getattr(capture, name)
            if data is not None and (masked := self.document(data)) is not data:
                changes[name] = masked
        if capture.session_key is not None and self.text(capture.session_key) != capture.session_key:
            *source, name = capture.session_key.split(":", 2)
            changes["session_key"] = ":".join([*source, pseudonym(name)])
        identity = {name: self._named(value) for name, value in capture.identity.items()}
        if identity != capture.identity:
            changes["identity"] = identity
        if (detail := self.text(capture.problem_detail)) != capture.problem_detail:
            changes["problem_detail"] = detail
        if not changes:
            return capture
        if not self._train and capture.api != FEEDBACK:
            changes |= {"prompt_ids": None, "response_ids": None, "logprobs": None}
            if capture.problem is None:
                changes |= {
                    "problem": str(DropReason.SCRUBBED),
                    "problem_detail": "secrets or personal data were masked",
                }
        return msgspec.structs.replace(capture, **changes)

    def _named(self, value: str) -> str:
        return value if self.text(value) == value else pseudonym(value)


def pseudonym(value: str) -> str:
    """What stands for an id that holds personal data: equal for equal ids, so that sessions stay apart."""
    return "scrubbed-" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def make_scrubber(proxy: ProxySection) -> Scrubber | None:
    """The scrubber that ``proxy.scrub`` asks for, or ``None``. Imports the libraries only when it is on."""
    if proxy.scrub == "off":
        return None
    secrets, personal = proxy.scrub in ("secrets", "both"), proxy.scrub in ("personal", "both")
    finders = [*(secret_finders() if secrets else ())]
    finders += personal_finders(proxy.scrub_phone_regions) if personal else []
    return Scrubber(finders, secrets=secrets, train_scrubbed=proxy.train_scrubbed)


class ScrubbingStage:
    """Scrubs captures one after the other, in a thread, and hands them on in the order in which they came."""

    def __init__(
        self, scrubber: Scrubber, sink: Sink, flight: InFlight, metrics: ProxyMetrics, receipts: Receipts
    ) -> None:
        """Hand on to ``sink``."""
        self._scrubber = scrubber
        self._sink = sink
        self._flight = flight
        self._metrics = metrics
        self._receipts = receipts
        self._queue: asyncio.Queue[Parcel] = asyncio.Queue(QUEUE_LENGTH)

    async def put(self, parcel: Parcel) -> None:
        """Take one parcel; waits while the queue is full."""
        await self._queue.put(parcel)

    @property
    def full(self) -> bool:
        """Whether :meth:`put` would have to wait, here or behind."""
        return self._queue.full() or self._sink.full

    async def run(self) -> None:
        """Scrub for ever. A capture that cannot be scrubbed is lost, counted and logged, never stored as it was."""
        while True:
            parcel = await self._queue.get()
            try:
                await self._one(parcel)
            finally:
                self._queue.task_done()

    async def _one(self, parcel: Parcel) -> None:
        turn_id = parcel.capture.turn_id
        try:
            capture = await asyncio.to_thread(self._scrubber.capture, parcel.capture)
        except Exception as error:  # noqa: BLE001 - one capture, whatever is wrong with it
            self._metrics.lost.labels("unscrubbable").inc()
            log.error("capture lost: it cannot be scrubbed", turn_id=turn_id, error=type(error).__name__)
            self._flight.end(turn_id)
            self._receipts.give([turn_id])
            return
        if capture is not parcel.capture:
            self._metrics.scrubbed.inc()
        await self._sink.put(Parcel(capture, parcel.traceparent))

    async def drain(self) -> None:
        """Wait until everything that was put is handed on."""
        await self._queue.join()
