"""Every wire type, in one place. Owns shapes and names; no Redis, no services, no torch.

Fields are only ever added, with defaults; a reader accepts its own version and the one before.
Raw JSON (``bytes``) is what the agent or the engine sent, kept verbatim.
Legend: P = prompt tokens, T = response tokens, K = teacher candidates.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from hintloop_contract.tensors import PackedArray

#: Version written into every stream entry.
MESSAGE_VERSION = 1


class Stage(StrEnum):
    """Where a turn was dropped."""

    CAPTURE = "capture"
    LINK = "link"
    JUDGE = "judge"
    TEACH = "teach"
    TRAIN = "train"


class DropReason(StrEnum):
    """Why a turn did not become a gradient. The value is what users see in the funnel."""

    ABORTED = "aborted"  # cut by a disconnect, a timeout or an engine abort
    EMPTY = "empty"  # the answer has no token
    COUNT_MISMATCH = "count_mismatch"  # ids, log-probabilities and usage disagree
    LOGPROB_MISSING = "logprob_missing"  # null, NaN, infinite, positive or the engine's placeholder
    IDS_MISSING = "ids_missing"  # the engine gave no token ids
    UPSTREAM_ERROR = "upstream_error"  # the engine answered with an error
    NOT_TRAINABLE = "not_trainable"  # an API or content kind that is served but not trained
    TENANT_OPT_OUT = "tenant_opt_out"  # the key says train = false
    SCRUBBED = "scrubbed"  # secrets or personal data were masked before it was stored
    SIDE = "side"  # marked or recognised as no turn of the main line
    RETRY = "retry"  # repeats an earlier attempt
    NOT_CONTINUED = "not_continued"  # n > 1: another choice was the one continued
    NO_NEXT_STATE = "no_next_state"  # nothing followed before the session timed out
    MIXED_VERSION = "mixed_version"  # weights changed inside the answer
    BACKPRESSURE = "backpressure"  # more waits than can still be trained fresh
    CONSTRAINED = "constrained"  # grammar, forced tool, bias or penalty; dropped by configuration
    NO_SIGNAL = "no_signal"  # the judge gave nothing that the method can use
    NO_HINT = "no_hint"  # the method needs a hint and there is none
    NEUTRAL = "neutral"  # score 0 under a method that learns from the score alone
    JUDGE_FAILED = "judge_failed"  # too many votes failed
    RENDER_MISMATCH = "render_mismatch"  # the engine's rendering differs from the captured prompt ids
    NO_HINT_PLACE = "no_hint_place"  # no unambiguous place for the hint
    TEACHER_MISSING = "teacher_missing"  # a teacher log-probability is missing
    TEACHER_MISALIGNED = "teacher_misaligned"  # scored tokens are not the response's
    TOO_LONG = "too_long"  # longer than max_seq_len, or than the PRM engine's context
    STALE = "stale"  # too many versions behind when the batch was formed
    ORPHAN_VERSION = "orphan_version"  # made by weights that no longer descend to the current ones
    GATE_REJECTED = "gate_rejected"  # trained into weights that were not released
    FEEDBACK = "feedback"  # explicit feedback itself: given to the turn that it names, or naming none that is open
    DEAD = "dead"  # failed repeatedly; the message is kept in `dead`


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Effective sampling parameters of one request; ``None`` is the engine's own neutral value.

    Example: ``Sampling(temperature=0.7, top_p=1.0, max_tokens=48)``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    constrained: bool = False
    """A grammar, forced tool choice, logit bias or penalty shaped the distribution, or unknown defaults did."""
    defaults_unknown: bool = False
    """The agent left parameters out and the engine's defaults are not known: the numbers here are a guess, and
    ``constrained`` is set, so that nothing is corrected by them."""


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens ``[start, end)`` were produced by weights ``version``.

    Example: ``VersionSpan(version=3, start=0, end=12)``.
    """

    version: int
    start: int
    end: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request, unlinked. Written by the proxy's hot path, which decides nothing.

    ``problem`` is a :class:`DropReason` found while capturing; such a capture still links others, but
    never becomes a turn. Arrays are ``None`` when the engine gave none.
    Example: ``Capture(turn_id="0193…", engine="vllm", engine_url="http://127.0.0.1:8100", …)``.
    """

    turn_id: str
    tenant: str = "default"
    credential: str = ""
    """First 16 hex digits of the SHA-256 of the client's key; separates clients, reveals nothing."""
    session_key: str | None = None
    """Explicit session id from header or body, with its source as prefix (``header:…``)."""
    identity: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers by which agents name conversations, sub-agents and attempts: lower-case name to value."""
    api: str = "chat_completions"
    engine: str
    engine_url: str
    request: bytes
    """JSON body as the agent sent it."""
    chat_request: bytes | None = None
    """JSON body of the chat completion that was asked in its place, when another API was translated."""
    answer: bytes | None = None
    """JSON assistant message as the agent received it."""
    choice: int = 0
    """Which of ``num_choices`` answers to one request; each has a capture of its own, ``response_id`` is shared."""
    num_choices: int = 1
    response_id: str | None = None
    status: str = "complete"
    """``complete``, ``aborted`` or ``refused``."""
    http_status: int = 200
    finish_reason: str | None = None
    usage_completion_tokens: int | None = None
    prompt_ids: PackedArray | None = None
    """int32 ``[P]``."""
    response_ids: PackedArray | None = None
    """int32 ``[T]``, the end-of-turn token included."""
    logprobs: PackedArray | None = None
    """float32 ``[T]``, nats, in ``behaviour_space``."""
    behaviour_space: str = "raw"
    """``raw``, ``after_temperature`` or ``processed`` (after temperature and truncation)."""
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    version_oldest: int | None = None
    version_newest: int | None = None
    spans: tuple[VersionSpan, ...] = ()
    start_ms: int
    """Redis time at which the request arrived, milliseconds."""
    end_ms: int
    turn_type: str | None = None
    """``X-Turn-Type`` as sent: ``main`` or ``side``."""
    session_done: bool = False
    problem: str | None = None
    problem_detail: str = ""


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn consists of, stored once at ``turn:<turn_id>`` and read by judge and teacher.

    Example: ``TurnRecord(turn_id="0193…", messages=b'[{"role":"user",…}]', answer=b'{"role":"assistant",…}', …)``.
    """

    turn_id: str
    messages: bytes
    """JSON array: the messages as sent."""
    tools: bytes | None = None
    """JSON array, or ``None`` when the request had none."""
    rendering: bytes = b"{}"
    """JSON object: what else shapes the rendering (``chat_template_kwargs``, ``reasoning_effort``, …)."""
    answer: bytes
    """JSON assistant message."""
    next_state: bytes = b"[]"
    """JSON array: every message after the answer, with roles."""
    prompt_ids: PackedArray
    """int32 ``[P]``, exactly as served."""
    response_ids: PackedArray
    """int32 ``[T]``."""
    logprobs: PackedArray
    """float32 ``[T]``, nats."""


class LinkedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn whose next state is settled; its contents stand in :class:`TurnRecord`.

    Example: ``LinkedTurn(turn_id="0193…", session_id="0193…", turn_index=0, engine="vllm", …)``.
    """

    turn_id: str
    tenant: str = "default"
    session_id: str
    turn_index: int
    api: str = "chat_completions"
    engine: str
    engine_url: str
    behaviour_space: str
    sampling: Sampling
    finish_reason: str | None = None
    version_oldest: int
    version_newest: int
    spans: tuple[VersionSpan, ...] = ()
    num_prompt_tokens: int
    num_response_tokens: int
    captured_ms: int
    linked_ms: int
    segment: int = 0
    """Counts within the session: a compacted or rewritten history opens one, and so does ``max_turns_per_session``."""
    feedback_score: int | None = None
    """Explicit feedback: +1, 0 or -1, which stands in place of a judged score; ``None`` when there was none."""


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One judge vote. ``failed`` says why it does not count; a failed vote is never neutral.

    Example: ``Vote(score=-1, hint="Answer in one short sentence.")``.
    """

    score: int | None = None
    hint: str | None = None
    failed: str | None = None


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge says of one turn: ``score`` in {+1, 0, -1, None} and a ``hint`` or ``None``.

    Example: ``Judgement(score=-1, hint="One short sentence please.", backend="rules")``.
    """

    score: int | None = None
    hint: str | None = None
    votes: tuple[Vote, ...] = ()
    backend: str
    model: str | None = None


class JudgedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A linked turn with its judgement.

    Example: ``JudgedTurn(turn=LinkedTurn(…), judgement=Judgement(score=1, backend="rules"))``.
    """

    turn: LinkedTurn
    judgement: Judgement

    @property
    def turn_id(self) -> str:
        """The turn's id."""
        return self.turn.turn_id


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the trainer needs of one turn.

    Teacher log-probabilities are at temperature 1; ``behaviour_logprobs`` are in ``behaviour_space``. The
    tail and the sampled token's log-probability are float32; the K candidates float16 (float32 by option) with
    int32 ids.
    Example: ``Sample(turn_id="0193…", score=-1, prompt_ids=…, response_ids=…, teacher_logprobs=…, …)``.
    """

    turn_id: str
    tenant: str = "default"
    session_id: str
    prompt_ids: PackedArray
    """int32 ``[P]``."""
    response_ids: PackedArray
    """int32 ``[T]``."""
    behaviour_logprobs: PackedArray
    """float32 ``[T]``, nats."""
    behaviour_space: str
    sampling: Sampling
    finish_reason: str | None = None
    version_oldest: int
    version_newest: int
    captured_ms: int
    score: int | None = None
    hint: str | None = None
    teacher_logprobs: PackedArray | None = None
    """float32 ``[T]``, nats; ``None`` when the turn was not scored."""
    teacher_topk_ids: PackedArray | None = None
    """int32 ``[T, K]``, most likely first."""
    teacher_topk_logprobs: PackedArray | None = None
    """float16 or float32 ``[T, K]``, nats."""
    teacher_tail_logprobs: PackedArray | None = None
    """float32 ``[T]``: log of the mass outside the K candidates."""
    teacher_model: str | None = None
    num_hinted_prompt_tokens: int | None = None
    hinted_prompt_ids: PackedArray | None = None
    """int32 ``[P']``: the prompt with its hint, where the trainer scores it or has it scored; ``None`` elsewhere."""


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that will not become a gradient, and why.

    Example: ``Drop(turn_id="0193…", stage="link", reason="no_next_state", detail="timed out after 300 s")``.
    """

    turn_id: str
    stage: str
    reason: str
    detail: str = ""
    tenant: str = "default"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that failed repeatedly, kept for the operator.

    Example: ``DeadLetter(stream="turns", turn_id="0193…", message=b"…", error="ValueError: …", …)``.
    """

    stream: str
    turn_id: str
    message: bytes
    error: str
    traceback: str
    attempts: int
    stage: str = ""
    """Under which stage its drop is counted."""


class TurnNote(msgspec.Struct, frozen=True, kw_only=True):
    """Where a settled turn stood, by which the next linker goes on with its session. No words: only digests of them.

    Example: ``TurnNote(turn_id="0193…", session_id="0193…", turn_index=3, request=b"…", answer=b"…", …)``.
    """

    turn_id: str
    tenant: str
    credential: str
    api: str
    session_id: str
    turn_index: int
    segment: int
    num_turns: int
    """Turns of its segment up to this one."""
    session: bytes = b""
    """Digest of the session that its client named; empty when none was."""
    branch: bytes = b""
    """The same of the thread or agent within that session."""
    frame: bytes
    """Digest of its tools, or of its system texts where it had none."""
    tools: bool
    request: bytes
    """Digest of everything before the answer."""
    answer: bytes
    """Digest of the answer's text and calls."""
    ends: tuple[tuple[int, int, bytes, bytes], ...] = ()
    """For a prompt without messages, where it ends with its answer: length, last whole step, digest of either."""
    response: bytes = b""
    """Digest of the response's id."""
    failed: bool = False
    """No whole answer came: the same request again is a retry of it."""
    after: str | None = None
    """The turn that it went on from."""
    next: str | None = None
    """The request that went on from it, as far as known then."""
    end_ms: int


#: Any message that a stream carries.
Message = Capture | LinkedTurn | JudgedTurn | Sample | Drop | DeadLetter
