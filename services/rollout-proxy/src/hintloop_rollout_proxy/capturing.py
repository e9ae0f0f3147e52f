"""From one exchange to one ``Capture``. Owns what was seen of a request while it was served; decides no link."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
import numpy as np
from hintloop_contract.messages import Capture, DropReason, Sampling
from hintloop_contract.tensors import PackedArray, pack

from hintloop_rollout_proxy.engines.dialect import Answer
from hintloop_rollout_proxy.problems import Problem, check_ids, find_problem

#: Finish reasons by which the engine says that it gave up.
ABORT_REASONS = ("abort", "error")


@dataclass(slots=True)
class Exchange:
    """One request on its way. ``status`` is what a capture says: ``complete``, ``aborted`` or ``refused``."""

    turn_id: str
    request: bytes
    start_ms: int
    version_oldest: int
    engine: str
    tenant: str = "default"
    credential: str = ""
    opted_out: bool = False
    """Whether the client's key says that its turns must not be trained."""
    session_key: str | None = None
    turn_type: str | None = None
    session_done: bool = False
    traceparent: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    leaves_sampling_out: bool = False
    shaped: bool = False
    """Whether the request itself shapes the distribution: a grammar, forced tool choice, bias or penalty."""
    untrainable: str | None = None
    engine_url: str = ""
    behaviour_space: str | None = None
    answer: Answer = field(default_factory=Answer)
    status: str = "aborted"
    http_status: int = 200
    detail: str = ""

    def choose(self, engine_url: str, behaviour_space: str | None, defaults_neutral: bool) -> None:
        """An engine will answer. What the agent leaves out is guessed, unless the engine's defaults are neutral."""
        self.engine_url, self.behaviour_space = engine_url, behaviour_space
        if self.leaves_sampling_out:
            self.sampling = msgspec.structs.replace(
                self.sampling,
                defaults_unknown=not defaults_neutral,
                constrained=self.shaped or not defaults_neutral,
            )

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
        elif self.answer.finish_reason in ABORT_REASONS:
            self.abort(f"finish_reason {self.answer.finish_reason}")
        else:
            self.status, self.detail = "complete", ""


def problem_of(exchange: Exchange) -> Problem | None:
    """Why the exchange cannot become a turn, or ``None``."""
    if exchange.status == "refused":
        return DropReason.UPSTREAM_ERROR, f"HTTP {exchange.http_status}: {exchange.detail}"
    if exchange.status == "aborted":
        return DropReason.ABORTED, exchange.detail
    if exchange.opted_out:
        return DropReason.TENANT_OPT_OUT, "the key of this client says train = false"
    if exchange.untrainable is not None:
        return DropReason.NOT_TRAINABLE, exchange.untrainable
    problem = find_problem(exchange.answer)
    if problem is None and exchange.behaviour_space is None:
        return DropReason.NOT_TRAINABLE, "the engine is not yet probed: which log-probabilities it reports is unknown"
    return problem


def capture_of(exchange: Exchange, end_ms: int) -> Capture:
    """The capture of a finished exchange. ``version_newest`` stays open until it is written, unless spans tell it."""
    answer, problem = exchange.answer, problem_of(exchange)
    versions = [span.version for span in answer.spans]
    answered = exchange.status != "refused"
    return Capture(
        turn_id=exchange.turn_id,
        tenant=exchange.tenant,
        credential=exchange.credential,
        session_key=exchange.session_key,
        engine=exchange.engine,
        engine_url=exchange.engine_url,
        request=exchange.request,
        answer=answer.assistant_json() if answered else None,
        response_id=answer.response_id,
        status=exchange.status,
        http_status=exchange.http_status,
        finish_reason=answer.finish_reason,
        usage_completion_tokens=answer.usage_completion_tokens,
        prompt_ids=_ids(answer.prompt_ids),
        response_ids=_ids(answer.response_ids),
        logprobs=_logprobs(answer.logprobs),
        behaviour_space=exchange.behaviour_space or "raw",
        sampling=exchange.sampling,
        version_oldest=min(versions) if versions else exchange.version_oldest,
        version_newest=max(versions) if versions else None,
        spans=answer.spans,
        start_ms=exchange.start_ms,
        end_ms=end_ms,
        turn_type=exchange.turn_type,
        session_done=exchange.session_done,
        problem=None if problem is None else str(problem[0]),
        problem_detail="" if problem is None else problem[1],
    )


def _ids(ids: list[int] | None) -> PackedArray | None:
    # Ids that are none stay out; such a capture carries a problem and is never trained.
    return None if ids is None or check_ids(ids) is not None else pack(np.array(ids, dtype=np.int64), "int32")


def _logprobs(logprobs: list[float | None] | None) -> PackedArray | None:
    # A missing value stays visible as NaN; such a capture carries a problem and is never trained.
    return None if logprobs is None else pack([math.nan if x is None else x for x in logprobs], "float32")
