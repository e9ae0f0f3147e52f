"""The whole configuration schema. A service takes its sections; loading and precedence live in `loading`.

Every field's docstring is its documentation. Names are those that OPD users write today.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Section(BaseModel):
    """Base of every section: unknown keys are refused, attributes' docstrings are the documentation."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True)


def http_address(value: str) -> str:
    """Check an ``http(s)://host[:port][/path]`` address and strip its trailing slash."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not an http(s) address; write it as http://host:port")
    return value.rstrip("/")


class ModelSection(Section):
    """The student: what is trained and served."""

    student_model_path: str = ""
    """Directory with the student's Hugging Face weights and configuration."""
    tokenizer_path: str = ""
    """Directory with its tokenizer; the student's own when empty."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype of the trainer's compute and of the published weights."""
    max_seq_len: Positive = 8192
    """Longest prompt + response, in tokens; longer samples drop as `too_long`."""


class RolloutSection(Section):
    """The policy engine and what the proxy does with the traffic to it."""

    engine: Literal["sglang", "vllm"] = "sglang"
    """Dialect of the policy engine."""
    sglang_host: str = "127.0.0.1"
    """Host of the policy engine (either dialect), when `policy.engines` is not given."""
    sglang_port: Port = 30000
    """Port of the policy engine (either dialect), when `policy.engines` is not given."""
    rollout_batch_size: Positive = 32
    """Samples collected before training starts; a multiple of `training.train_batch_size`."""
    max_new_tokens: Positive = 2048
    """Answer limit for agents that leave it out, under `apply_sampling_defaults`."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature for agents that leave it out, under `apply_sampling_defaults`."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus for agents that leave it out, under `apply_sampling_defaults`."""
    apply_sampling_defaults: bool = False
    """Fill `temperature`, `top_p` and `max_new_tokens` into agents' requests that leave them out."""
    passive_mode: bool = True
    """Must be true: there is no active rollout."""
    session_timeout_sec: PositiveFloat = 300.0
    """Seconds from the end of an answer to the arrival of the next request; later does not revive the turn."""
    max_turns_per_session: Positive = 10
    """Turn N + 1 opens a new segment."""

    @field_validator("passive_mode")
    @classmethod
    def _passive(cls, value: bool) -> bool:
        if not value:
            raise ValueError(
                "false is refused: Hintloop has no active rollout; agents drive it. Remove the key or set true"
            )
        return value


class TrainingSection(Section):
    """The optimizer step."""

    engine: Literal["megatron"] = "megatron"
    """Training engine."""
    train_batch_size: Positive = 16
    """Samples per optimizer step."""
    micro_batch_size: Positive = 2
    """Most samples per forward pass."""
    num_epochs: Positive = 1
    """Passes over each collection of `rollout_batch_size` samples."""
    learning_rate: PositiveFloat = 1e-6
    """AdamW learning rate, constant."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta 1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW beta 2."""
    grad_clip: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    ppo_clip_epsilon: PositiveFloat = 0.2
    """PPO clip on both sides, unless `ppo_clip_epsilon_high` is given."""
    ppo_clip_epsilon_high: PositiveFloat | None = None
    """Upper PPO clip."""
    kl_coef: NonNegativeFloat = 0.0
    """Coefficient of the reference KL; not 0 under OPD is refused unless `force_kl`."""
    force_kl: bool = False
    """Accept `kl_coef` under OPD, whose teacher term already is a KL."""
    loss_reduction: Literal["token_mean", "sample_mean"] = "token_mean"
    """Divide by the trained tokens, or by the samples, of the whole batch."""
    tis_cap: PositiveFloat | None = 2.0
    """Cap of truncated importance sampling; null switches it off."""
    max_staleness_steps: Positive = 4
    """Samples made by weights more than this many versions behind drop as `stale`."""
    allow_mixed_version: bool = False
    """Train answers during which the weights changed."""
    allow_constrained: bool = True
    """Train turns made under a grammar, forced tool or penalty (without TIS); false drops them."""
    save_interval: Positive = 100
    """Steps between checkpoints; samples are acknowledged when a checkpoint holds them."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints kept."""
    checkpoint_dir: Path = Path(".hintloop/checkpoints")
    """Where checkpoints are written."""
    max_steps: Positive | None = None
    """Stop after this many optimizer steps."""
    seed: int = 1234
    """Seed of the trainer."""
    tensor_model_parallel_size: Positive = 1
    """Tensor parallel ranks."""
    pipeline_model_parallel_size: Positive = 1
    """Pipeline parallel stages."""
    use_custom_loss: bool = False
    """False says that no path is set here; the advantage section's still counts."""
    custom_loss_path: str | None = None
    """Python file that defines `compute_loss`."""


class AdvantageSection(Section):
    """The learning method."""

    estimator: Literal["on_policy_distillation", "grpo", "combine"] = "on_policy_distillation"
    """OPD, binary RL, or both."""
    gamma: float = 1.0
    """Must be 1.0: a turn is one action."""
    lam: float = 1.0
    """Must be 1.0: there is no value model."""
    w_rl: NonNegativeFloat = 1.0
    """Weight of the score under `combine`."""
    w_opd: NonNegativeFloat = 1.0
    """Weight of the teacher term under `combine`."""
    custom_loss_function_path: str | None = None
    """Python file that defines `compute_loss`."""

    @field_validator("gamma", "lam")
    @classmethod
    def _one(cls, value: float) -> float:
        if value != 1.0:
            raise ValueError(
                f"{value} is refused: each turn is one action with its own signal, so there is nothing to discount "
                "and no value model to bootstrap from; set 1.0"
            )
        return value


class PrmSection(Section):
    """The PRM engine behind judge and teacher."""

    prm_url: str = "http://127.0.0.1:30001"
    """Base address of the PRM engine; `/v1` is appended unless it ends in it."""
    prm_api_key: SecretStr = SecretStr("")
    """Its key; give it by environment (`HINTLOOP_PRM__PRM_API_KEY`)."""
    engine: Literal["auto", "sglang", "vllm", "openai"] = "auto"
    """Dialect of the PRM engine; `auto` probes it at start."""
    judge_backend: Literal["llm", "rules"] = "llm"
    """`llm` asks a chat model; `rules` reads corrections, confirmations, tool errors and exit codes."""
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
    timeout_s: PositiveFloat = 60.0
    """Seconds before a PRM request counts as failed."""
    max_concurrency: Positive = 8
    """Most requests to the PRM engine at once, per service."""
    host: str = "127.0.0.1"
    """Where judge and teacher listen for `_prm_url` routes."""
    port: Port = 18010
    """Port of the `_prm_url` routes."""
    teacher_tokenizer_path: str | None = None
    """Tokenizer of the teacher's model, checked against the student's when the engine cannot be probed."""

    _address = field_validator("prm_url")(http_address)

    @property
    def base_url(self) -> str:
        """`prm_url` with `/v1` at its end."""
        return self.prm_url if self.prm_url.endswith("/v1") else f"{self.prm_url}/v1"

    @property
    def root_url(self) -> str:
        """`prm_url` without `/v1` at its end."""
        return self.prm_url.removesuffix("/v1")


class OpdSection(Section):
    """Hints and the teacher."""

    enable_hint_extraction: bool = True
    """Ask for hints; false makes every turn hintless."""
    hint_format: str = "\n\n[user's hint / instruction]\n{hint}"
    """How a hint is written behind the last user message."""
    min_hint_length: Positive = 10
    """Shortest hint in characters, inclusive."""
    max_hint_length: Positive = 256
    """Longest hint in characters, inclusive."""
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


class PolicySection(Section):
    """The policy that this deployment trains."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "default"
    """Name in Redis keys; one deployment trains one policy."""
    engines: list[str] = Field(default_factory=list)
    """Address of every policy engine worker (never a router); from `rollout.sglang_host`/`port` when empty."""
    served_model_name: str = "policy"
    """Model name that agents see."""
    api_key: SecretStr = SecretStr("")
    """Key set upstream when the proxy checks keys of its own."""

    @field_validator("engines")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        return [http_address(item) for item in value]


class ProxySection(Section):
    """The rollout proxy."""

    host: str = "127.0.0.1"
    """Listening address."""
    port: Port = 18000
    """Listening port."""
    api_keys: list[SecretStr] = Field(default_factory=list)
    """Keys of our own that clients must present; empty passes the client's key through untouched."""
    request_timeout_s: PositiveFloat = 600.0
    """Longest answer."""
    max_request_bytes: Positive = 32 * 1024 * 1024
    """Largest request body."""
    spool_dir: Path = Path(".hintloop/spool")
    """Where captures wait while Redis is away."""
    spool_max_bytes: Positive = 1024 * 1024 * 1024
    """Most bytes that may wait there."""


class LinkerSection(Section):
    """The linker."""

    settle_ms: Annotated[int, Field(ge=0)] = 2000
    """How long an uncertain link waits for a better one."""
    lease_ms: Annotated[int, Field(ge=1000)] = 10_000
    """Length of the active linker's lease."""


class RedisSection(Section):
    """Redis."""

    url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Address with password, if any (`redis://`, `rediss://` or `unix://`)."""
    claim_idle_ms: Annotated[int, Field(ge=1000)] = 60_000
    """A message held this long without renewal is claimed by another worker."""
    max_attempts: Positive = 3
    """Failures of one message before it goes to `dead`."""
    turn_retention_s: Annotated[int, Field(ge=0)] = 3600
    """How long a turn's record is kept after its end."""
    check_durability: bool = True
    """Refuse to start unless `maxmemory-policy` is `noeviction` and AOF is on."""


class PublishingSection(Section):
    """Weights to the engines."""

    weights_dir: Path = Path(".hintloop/weights")
    """Volume mounted at the same path for trainer and engines."""
    keep_versions: Positive = 2
    """Newest versions kept, the current one among them; those that an engine reports stay as well."""
    timeout_s: PositiveFloat = 120.0
    """Longest single call to an engine."""
    probe_tolerance: PositiveFloat | None = None
    """Largest difference between engine and trainer on the probe's mean log-probability; by dtype when null."""
    reconcile_interval_s: PositiveFloat = 3.0
    """How often engines are compared with the current version."""


class LoggingSection(Section):
    """Logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written."""
    format: Literal["json", "console"] = "console"
    """One JSON object a line, or text for people."""


class Config(Section):
    """The resolved configuration of one deployment."""

    model: ModelSection = Field(default_factory=ModelSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    advantage: AdvantageSection = Field(default_factory=AdvantageSection)
    prm: PrmSection = Field(default_factory=PrmSection)
    opd: OpdSection = Field(default_factory=OpdSection)
    topk_opd: TopkOpdSection = Field(default_factory=TopkOpdSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    proxy: ProxySection = Field(default_factory=ProxySection)
    linker: LinkerSection = Field(default_factory=LinkerSection)
    redis: RedisSection = Field(default_factory=RedisSection)
    publishing: PublishingSection = Field(default_factory=PublishingSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)

    @property
    def engine_urls(self) -> list[str]:
        """Policy engine workers: `policy.engines`, or the one of `rollout.sglang_host`/`sglang_port`."""
        if self.policy.engines:
            return list(self.policy.engines)
        return [f"http://{self.rollout.sglang_host}:{self.rollout.sglang_port}"]

    @property
    def tokenizer_dir(self) -> str:
        """`model.tokenizer_path`, or the student's directory."""
        return self.model.tokenizer_path or self.model.student_model_path

    @property
    def custom_loss(self) -> str | None:
        """The one custom loss path, from whichever section sets it."""
        return self.training.custom_loss_path or self.advantage.custom_loss_function_path

    @property
    def admission_limit(self) -> int:
        """Most turns that may wait untrained: `max_staleness_steps x train_batch_size`."""
        return self.training.max_staleness_steps * self.training.train_batch_size

    @model_validator(mode="after")
    def _custom_loss(self) -> Config:
        ours, theirs = self.training.custom_loss_path, self.advantage.custom_loss_function_path
        if self.training.use_custom_loss and not (ours or theirs):
            raise ValueError("training.use_custom_loss is true but no path is set; set training.custom_loss_path")
        said_no = "use_custom_loss" in self.training.model_fields_set and not self.training.use_custom_loss
        if ours and said_no:
            raise ValueError(
                f"training.custom_loss_path {ours!r} is set while training.use_custom_loss is false; "
                "set use_custom_loss = true, or remove the path"
            )
        if ours and theirs and ours != theirs:
            raise ValueError(
                f"training.custom_loss_path {ours!r} and advantage.custom_loss_function_path {theirs!r} differ; "
                "keep one of them"
            )
        return self

    @model_validator(mode="after")
    def _batches(self) -> Config:
        collected, step = self.rollout.rollout_batch_size, self.training.train_batch_size
        if collected % step:
            raise ValueError(
                f"rollout.rollout_batch_size {collected} is not a multiple of training.train_batch_size {step}; "
                "the rest of a collection could never be trained"
            )
        if collected > self.admission_limit:
            raise ValueError(
                f"rollout.rollout_batch_size {collected} is above training.max_staleness_steps x train_batch_size "
                f"= {self.admission_limit}: no collection could ever fill; raise training.max_staleness_steps"
            )
        return self

    @model_validator(mode="after")
    def _reference_kl(self) -> Config:
        opd = self.advantage.estimator == "on_policy_distillation"
        if opd and self.training.kl_coef and not self.training.force_kl:
            raise ValueError(
                f"training.kl_coef {self.training.kl_coef} is refused under on_policy_distillation: the teacher term "
                "already is a KL, and a second one pulls against the hint; set 0, or training.force_kl = true"
            )
        return self
