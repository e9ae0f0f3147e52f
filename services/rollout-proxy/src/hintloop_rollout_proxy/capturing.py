"""From one exchange to its captures, one a choice. Owns what was seen of a request while it was served; decides no
link."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence

import msgspec
import structlog
from hintloop_contract.ids import new_id
from hintloop_contract.messages import Capture, DropReason
from hintloop_contract.tensors import PackedArray

from hintloop_rollout_proxy.engines.answer import Answer, Choice
from hintloop_rollout_proxy.engines.dialect import CHAT
from hintloop_rollout_proxy.errors import said
from hintloop_rollout_proxy.problems import Problem, find_problem, usage_of
from hintloop_rollout_proxy.request import Reading

#: Finish reasons by which the engine says that it gave up.
ABORT_REASONS = ("abort", "error")

log = structlog.get_logger()


class Exchange(msgspec.Struct):
    """One request on its way. ``status`` is what a capture says: ``complete``, ``aborted`` or ``refused``."""

    turn_id: str
    request: bytes
    start_ms: int
    version_oldest: int
    engine: str
    reading: Reading
    api: str = CHAT
    chat_request: bytes | None = None
    tenant: str = "default"
    credential: str = ""
    opted_out: bool = False
    """Whether the client's key says that its turns must not be trained."""
    session_key: str | None = None
    identity: dict[str, str] = {}
    turn_type: str | None = None
    session_done: bool = False
    traceparent: str = ""
    response_id: str | None = None
    """The id of the answer, where it is not the engine's."""
    untrainable: str | None = None
    """Why it is served but never trained."""
    engine_url: str = ""
    behaviour_space: str | None = None
    defaults_neutral: bool = True
    adapter_version: int | None = None
    """The version of the adapter that answers: it is never replaced, so the whole answer is of this version."""
    answer: Answer = msgspec.field(default_factory=Answer)
    status: str = "aborted"
    http_status: int = 200
    detail: str = ""

    def choose(self, engine_url: str, behaviour_space: str | None, defaults_neutral: bool) -> None:
        """An engine will answer. What the agent leaves out is guessed, unless the engine's defaults are neutral."""
        self.engine_url, self.behaviour_space = engine_url, behaviour_space
        self.defaults_neutral = defaults_neutral

    def refuse(self, http_status: int, detail: str) -> None:
        """The engine, or the proxy in its place, answered with an error."""
        self.status, self.http_status, self.detail = "refused", http_status, detail

    def abort(self, detail: str) -> None:
        """The answer was cut."""
        self.status, self.detail = "aborted", detail

    def leave(self) -> None:
        """The client closed the connection: after the answer, which then counts, or in its middle."""
        if self.status == "refused":
            return
        if self.answer.whole and self.answer.error is None:
            self.answer.finished = True
            self.conclude()
        else:
            self.abort("the client closed the connection")

    def conclude(self) -> None:
        """The engine's answer ended: whole, or cut by the engine."""
        if self.answer.error is not None:
            self.abort(f"the engine reported an error inside the answer: {self.answer.error:.200}")
        elif not self.answer.finished:
            self.abort("the engine ended the stream before it was whole")
        else:
            self.status, self.detail = "complete", ""


def problem_of(exchange: Exchange, choice: Choice) -> Problem | None:
    """Why a choice cannot become a turn, or ``None``."""
    if exchange.status == "refused":
        return DropReason.UPSTREAM_ERROR, f"HTTP {exchange.http_status}: {exchange.detail}"
    if exchange.status == "aborted":
        return DropReason.ABORTED, exchange.detail
    if choice.finish_reason in ABORT_REASONS:
        return DropReason.ABORTED, f"finish_reason {choice.finish_reason}"
    if exchange.opted_out:
        return DropReason.TENANT_OPT_OUT, "the key of this client says train = false"
    if exchange.untrainable is not None:
        return DropReason.NOT_TRAINABLE, exchange.untrainable
    problem = find_problem(exchange.answer, choice)
    if problem is None and choice.finish_reason is None:
        return DropReason.ABORTED, "the engine gave no finish_reason: the last of the answer may be missing"
    if problem is None and exchange.behaviour_space is None:
        return DropReason.NOT_TRAINABLE, "the engine is not yet probed: which log-probabilities it reports is unknown"
    return problem


def captures_of(exchange: Exchange, end_ms: int) -> list[Capture]:
    """The captures of a finished exchange, in the order of its choices; one when nothing was answered."""
    choices = exchange.answer.choices
    if len(choices) <= 1 and exchange.reading.num_choices == 1:
        return [_capture(exchange, next(iter(choices.values()), Choice()), exchange.turn_id, 1, end_ms)]
    count = max(exchange.reading.num_choices, len(choices))
    ordered = [choices[index] for index in sorted(choices)] or [Choice()]
    turn_ids = [exchange.turn_id, *(new_id() for _ in ordered[1:])]
    return [
        _capture(exchange, choice, turn_id, count, end_ms) for choice, turn_id in zip(ordered, turn_ids, strict=True)
    ]


def captures_or_request(exchange: Exchange, end_ms: int) -> list[Capture]:
    """The captures; of an answer that cannot be packed only the request, which may be another's next state."""
    try:
        return captures_of(exchange, end_ms)
    except Exception as error:  # noqa: BLE001 - one answer, whatever is wrong with it
        log.error("answer cannot be captured", turn_id=exchange.turn_id, error=said(error))
        exchange.answer = Answer()
        exchange.abort(f"the answer cannot be captured: {error!r:.200}")
        return captures_of(exchange, end_ms)


def _capture(exchange: Exchange, choice: Choice, turn_id: str, num_choices: int, end_ms: int) -> Capture:
    """``version_newest`` stays open until it is written, unless spans or an adapter tell it."""
    answer, problem = exchange.answer, problem_of(exchange, choice)
    versions = [span.version for span in choice.spans]
    if exchange.adapter_version is not None:
        versions = [exchange.adapter_version]
    answered = exchange.status != "refused" and answer.has_message
    given_up = exchange.status == "complete" and choice.finish_reason in ABORT_REASONS
    sampling = exchange.reading.sampling
    if exchange.reading.leaves_sampling_out and not exchange.defaults_neutral:
        sampling = msgspec.structs.replace(sampling, defaults_unknown=True, constrained=True)
    return Capture(
        turn_id=turn_id,
        tenant=exchange.tenant,
        credential=exchange.credential,
        session_key=exchange.session_key,
        identity=exchange.identity,
        api=exchange.api,
        engine=exchange.engine,
        engine_url=exchange.engine_url,
        request=exchange.request,
        chat_request=exchange.chat_request,
        answer=choice.assistant_json() if answered else None,
        choice=choice.index,
        num_choices=num_choices,
        response_id=exchange.response_id or answer.response_id,
        status="aborted" if given_up else exchange.status,
        http_status=exchange.http_status,
        finish_reason=choice.finish_reason,
        usage_completion_tokens=usage_of(answer, choice),
        prompt_ids=_ids(answer.prompt_ids),
        response_ids=_ids(choice.response_ids),
        logprobs=_logprobs(choice.logprobs),
        behaviour_space=exchange.behaviour_space or "raw",
        sampling=sampling,
        version_oldest=min(versions) if versions else exchange.version_oldest,
        version_newest=max(versions) if versions else None,
        spans=choice.spans if exchange.adapter_version is None else (),
        start_ms=exchange.start_ms,
        end_ms=end_ms,
        turn_type=exchange.turn_type,
        session_done=exchange.session_done,
        problem=None if problem is None else str(problem[0]),
        problem_detail="" if problem is None else problem[1],
    )


def _ids(ids: list[int] | None) -> PackedArray | None:
    if ids is None:
        return None
    return PackedArray(dtype="int32", shape=(len(ids),), data=struct.pack(f"<{len(ids)}i", *ids))


def _logprobs(logprobs: Sequence[float | None] | None) -> PackedArray | None:
    if logprobs is None:
        return None
    # A missing value stays visible as NaN; such a capture carries a problem and is never trained.
    numbers = array("f", [math.nan if x is None else x for x in logprobs])
    if sys.byteorder == "big":
        numbers.byteswap()
    return PackedArray(dtype="float32", shape=(len(numbers),), data=numbers.tobytes())
