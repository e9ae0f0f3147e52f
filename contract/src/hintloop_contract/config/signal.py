"""Sections of what turns a next state into a signal: PRM engine, judge, hints, teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from hintloop_contract.config.access import ApiKeyEntry, ApiKeys
from hintloop_contract.config.judging import RulesSection
from hintloop_contract.config.section import (
    KeptSeconds,
    NonNegativeFloat,
    Port,
    Positive,
    PositiveFloat,
    Section,
    http_address,
)


class PrmSection(Section):
    """The PRM engine behind judge and teacher."""

    prm_url: str = "http://127.0.0.1:30001"
    """Base address of the PRM engine; `/v1` is appended unless it ends in it."""
    teacher_url: str | None = None
    """Base address of the teacher's engine, where it is not `prm_url`."""
    judge_url: str | None = None
    """Base address of the judge's engine, where it is not `prm_url`."""
    prm_api_key: SecretStr = SecretStr("")
    """Its key; give it by environment (`HINTLOOP_PRM__PRM_API_KEY`)."""
    engine: Literal["auto", "sglang", "vllm", "openai"] = "auto"
    """Dialect of the PRM engine; `auto` probes it at start."""
    judge_api_key: SecretStr = SecretStr("")
    """Key of `judge_url`, where it is not `prm_api_key`; give it by environment (`HINTLOOP_PRM__JUDGE_API_KEY`)."""
    judge_backend: Literal["llm", "rules", "rules_then_llm"] = "llm"
    """`llm` asks a chat model; `rules` reads corrections, confirmations, tool errors and exit codes;
    `rules_then_llm` asks the model only what the rules leave open."""
    rules: RulesSection = Field(default_factory=RulesSection)
    """How the rules read tools, by tool name."""
    judge_model: str = ""
    """Model asked for scores and hints; the endpoint's first model when empty."""
    judge_prompt_dir: Path | None = None
    """Directory with `score.md` and `hint.md` in place of the shipped judge prompts."""
    teacher_model: str = ""
    """Model asked for forced log-probabilities; the endpoint's first model when empty."""
    hint_max_tokens: Positive = 128
    """Token limit of a vote; a vote cut by it is a failed vote."""
    hint_temperature: NonNegativeFloat = 0.3
    """Temperature of the hint question."""
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of votes that must succeed for a judgement to stand."""
    judge_cache_s: KeptSeconds = 604_800
    """Seconds for which votes are kept, so that a question about the same exchange is not paid twice; 0: never."""
    judge_cache_entries: Positive = 20_000
    """Most questions whose votes are kept; the oldest go first."""
    timeout_s: PositiveFloat = 60.0
    """Seconds before one try of a PRM request counts as failed, its whole answer included."""
    deadline_s: PositiveFloat = 180.0
    """Seconds that a PRM request may take with all its tries; then the engine counts as away."""
    circuit_failures: Positive = 8
    """Failed tries in a row after which a PRM engine is left alone."""
    circuit_open_s: PositiveFloat = 5.0
    """Seconds for which it is left alone before it is tried again."""
    score_chunk_tokens: Positive = 1024
    """Response tokens scored in one request, where the engine can begin in the middle; longer answers take several."""
    max_concurrency: Positive = 8
    """Most requests to the PRM engine at once, per service."""
    host: str = "127.0.0.1"
    """Where judge and teacher listen for `_prm_url` routes."""
    port: Port = 18010
    """Port of the `_prm_url` routes."""
    api_keys: ApiKeys = Field(default_factory=list)
    """Keys that callers of the `_prm_url` routes must present (strings, or entries of `hintloop keys new`); empty
    leaves the routes open."""
    grpc_port: Port | None = None
    """Port of gRPC `ForcedScoring` beside them; the one after `port` when not given."""
    grpc_address: str = ""
    """`host:port` at which the trainer reaches gRPC `ForcedScoring`; `host` and `grpc_port` when empty."""
    grpc_max_requests: Positive = 64
    """Most gRPC calls that may wait or be scored at once, a stream of many sequences being one; more are answered
    `RESOURCE_EXHAUSTED`."""
    grpc_compression: Literal["zstd", "none"] = "zstd"
    """`zstd` makes replies of gRPC about a third smaller for some milliseconds at both ends; `none` leaves arrays as
    they are, so that decoding copies nothing: for a service on the same machine."""
    caller_key: SecretStr = SecretStr("")
    """The key of `api_keys` that the trainer presents; give it by environment (`HINTLOOP_PRM__CALLER_KEY`)."""
    teacher_source: Literal["engine", "trainer"] = "engine"
    """Who scores the answer under the hint: the PRM engine, or the trainer with weights of its own (no engine needed,
    and no difference between engines)."""
    teacher_weights: Literal["initial", "current", "ema"] = "initial"
    """Under `teacher_source = "trainer"`: the student as it was at first, as it is now, or its moving average."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Under `teacher_weights = "ema"`: how much of the average stays at each optimizer step."""
    null_hint_control: Literal["off", "warn", "refuse"] = "warn"
    """What follows when the PRM engine and the student's initial weights disagree on unhinted tokens: nothing, a
    warning (right where the teacher is another model than the student), or no training. `refuse` waits for the PRM."""
    engine_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """dtype in which the PRM engine computes, for the control's tolerance; `model.dtype` when not given."""
    teacher_tokenizer_path: str | None = None
    """Tokenizer of the teacher's model, checked against the student's when the engine cannot be probed."""

    _address = field_validator("prm_url")(http_address)

    @field_validator("teacher_url", "judge_url")
    @classmethod
    def _own_address(cls, value: str | None) -> str | None:
        return None if value is None else http_address(value)

    @field_validator("grpc_address")
    @classmethod
    def _target(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        numbered = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535
        bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if value and (not host or not numbered or "/" in host or bare):
            raise ValueError(f"{value!r} is no gRPC address; write it as host:port or [IPv6]:port, without http://")
        return value

    @property
    def grpc_listen_port(self) -> int:
        """`grpc_port`, or the port after `port`."""
        return self.grpc_port if self.grpc_port is not None else self.port + 1

    @property
    def grpc_target(self) -> str:
        """Where gRPC `ForcedScoring` is reached."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        host = f"[{host}]" if ":" in host else host
        return self.grpc_address or f"{host}:{self.grpc_listen_port}"

    @model_validator(mode="after")
    def _ports(self) -> PrmSection:
        if self.grpc_listen_port > 65535:
            raise ValueError("port 65535 has none after it for gRPC; set grpc_port, or another port")
        if self.grpc_listen_port == self.port:
            raise ValueError(f"port and grpc_port are both {self.port}; one of them needs another")
        return self

    @field_validator("api_keys")
    @classmethod
    def _callers(cls, value: list[ApiKeyEntry]) -> list[ApiKeyEntry]:
        for entry in value:
            if entry.tenant != "default" or not entry.train:
                raise ValueError(
                    f"tenant {entry.tenant!r} and train = {str(entry.train).lower()} have no effect here: the _prm_url "
                    "routes keep and train nothing; leave both out"
                )
        return value

    @model_validator(mode="after")
    def _teacher(self) -> PrmSection:
        given = self.model_fields_set
        if "teacher_weights" in given and self.teacher_source == "engine":
            raise ValueError(
                f"teacher_weights {self.teacher_weights!r} has no effect while the PRM engine scores; set "
                'teacher_source = "trainer", or remove it'
            )
        if "ema_decay" in given and self.teacher_weights != "ema":
            raise ValueError(
                f"ema_decay {self.ema_decay} has no effect under teacher_weights {self.teacher_weights!r}; set "
                'teacher_weights = "ema", or remove it'
            )
        return self

    @property
    def base_url(self) -> str:
        """`prm_url` with `/v1` at its end."""
        return self.prm_url if self.prm_url.endswith("/v1") else f"{self.prm_url}/v1"

    @property
    def root_url(self) -> str:
        """`prm_url` without `/v1` at its end."""
        return self.prm_url.removesuffix("/v1")

    @property
    def judge_base_url(self) -> str:
        """The judge's engine, with `/v1` at its end."""
        return f"{(self.judge_url or self.prm_url).removesuffix('/v1')}/v1"

    @property
    def teacher_root_url(self) -> str:
        """The teacher's engine, without `/v1` at its end."""
        return (self.teacher_url or self.prm_url).removesuffix("/v1")


class OpdSection(Section):
    """Hints and the teacher."""

    enable_hint_extraction: bool = True
    """Ask for hints; false makes every turn hintless."""
    hint_format: str = "\n\n[user's hint / instruction]\n{hint}"
    """How a hint is written behind the last user message."""
    hint_place: Literal["last_user", "last_message"] = "last_user"
    """Behind the last user message, also when tools spoke after it; or behind the last message, a tool's as well."""
    min_hint_length: Positive = 10
    """Shortest hint in characters, inclusive."""
    max_hint_length: Positive = 256
    """Longest hint in characters, inclusive."""
    hint_selection: Literal["longest", "shortest", "consensus"] = "longest"
    """Which acceptable hint is taken: the longest, the shortest, or the one that is most like all the others."""
    allow_quoted_hints: bool = False
    """Accept hints that quote the answer they are about; such a hint hands the answer to the teacher."""
    judge_vote_count: Positive = 3
    """Votes asked per question."""
    judge_temperature: NonNegativeFloat = 0.0
    """Temperature of the score question."""
    teacher_scoring_mode: Literal["forced", "generate"] = "forced"
    """Must be `forced`: the teacher scores the student's own tokens."""
    advantage_clip: PositiveFloat = 5.0
    """Bound of the teacher term, per token."""
    drop_sample_without_hint: bool = True
    """Leave the OPD part out of a turn without a hint; false scores it under the null hint."""
    log_teacher_logprobs: bool = False
    """Keep the per-token differences of the first steps for the report."""

    @field_validator("hint_format")
    @classmethod
    def _placeholder(cls, value: str) -> str:
        if value.count("{hint}") != 1:
            raise ValueError(f"{value!r} must contain {{hint}} exactly once")
        return value

    @field_validator("teacher_scoring_mode")
    @classmethod
    def _forced(cls, value: str) -> str:
        if value == "generate":
            raise ValueError(
                "'generate' is refused: tokens that the teacher samples are not the student's, so their "
                "log-probabilities say nothing about what the student did; set 'forced'"
            )
        return value

    @model_validator(mode="after")
    def _lengths(self) -> OpdSection:
        if self.min_hint_length > self.max_hint_length:
            raise ValueError(
                f"min_hint_length {self.min_hint_length} is above max_hint_length {self.max_hint_length}; "
                "no hint could pass: lower the first or raise the second"
            )
        return self


class TopkOpdSection(Section):
    """Top-K reverse KL."""

    top_k: Positive = 64
    """Candidates per token that the teacher returns."""
    use_teacher_topk: bool = True
    """The candidates are the teacher's; false takes the student's own."""
    logprobs_dtype: Literal["float16", "float32"] = "float16"
    """dtype in which the candidates' log-probabilities travel; the tail and the sampled token are float32 always."""
