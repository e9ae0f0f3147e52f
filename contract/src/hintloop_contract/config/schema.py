"""The whole configuration schema. A service takes its sections; loading and precedence live in `loading`.

Every field's docstring is its documentation. Names are those that OPD users write today. The sections stand in
`serving`, `signal`, `learning` and `operations`; here they are joined, with the rules between them.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from hintloop_contract.config.console import ConsoleSection
from hintloop_contract.config.gate import GateSection
from hintloop_contract.config.learning import ModelSection, PublishingSection, TrainingSection
from hintloop_contract.config.lora import LoraSection
from hintloop_contract.config.method import AdvantageSection
from hintloop_contract.config.metrics import MetricsSection
from hintloop_contract.config.operations import LoggingSection, RedisSection, TracingSection
from hintloop_contract.config.section import Section, http_address
from hintloop_contract.config.serving import LinkerSection, PolicySection, ProxySection, RolloutSection
from hintloop_contract.config.signal import OpdSection, PrmSection, TopkOpdSection

__all__ = [
    "AdvantageSection",
    "Config",
    "ConsoleSection",
    "GateSection",
    "LinkerSection",
    "LoggingSection",
    "LoraSection",
    "MetricsSection",
    "ModelSection",
    "OpdSection",
    "PolicySection",
    "PrmSection",
    "ProxySection",
    "PublishingSection",
    "RedisSection",
    "RolloutSection",
    "Section",
    "TopkOpdSection",
    "TracingSection",
    "TrainingSection",
    "http_address",
]


class Config(Section):
    """The resolved configuration of one deployment."""

    model: ModelSection = Field(default_factory=ModelSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    lora: LoraSection = Field(default_factory=LoraSection)
    advantage: AdvantageSection = Field(default_factory=AdvantageSection)
    prm: PrmSection = Field(default_factory=PrmSection)
    opd: OpdSection = Field(default_factory=OpdSection)
    topk_opd: TopkOpdSection = Field(default_factory=TopkOpdSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    proxy: ProxySection = Field(default_factory=ProxySection)
    linker: LinkerSection = Field(default_factory=LinkerSection)
    redis: RedisSection = Field(default_factory=RedisSection)
    publishing: PublishingSection = Field(default_factory=PublishingSection)
    gate: GateSection = Field(default_factory=GateSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    console: ConsoleSection = Field(default_factory=ConsoleSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    tracing: TracingSection = Field(default_factory=TracingSection)

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
    def _adapters_by_disk(self) -> Config:
        if self.lora.as_adapter and self.publishing.transport == "process_group":
            raise ValueError(
                f"publishing.transport {self.publishing.transport!r} carries whole weights, and lora.publish is "
                "'adapter': engines load adapters from publishing.weights_dir; set transport = 'disk', or "
                "lora.publish = 'merged'"
            )
        return self

    @model_validator(mode="after")
    def _gate_engine(self) -> Config:
        if self.gate.engine_url and self.gate.engine_url in self.engine_urls:
            raise ValueError(
                f"gate.engine_url {self.gate.engine_url!r} is an engine of the policy: agents would be answered by "
                "weights that are not released; give an engine of its own, or leave it empty"
            )
        return self

    @model_validator(mode="after")
    def _moving_average(self) -> Config:
        follows = self.prm.teacher_source == "trainer" and self.prm.teacher_weights == "ema"
        if follows and self.training.use_distributed_optimizer and self.model.dtype == "bfloat16":
            raise ValueError(
                "prm.teacher_weights 'ema' follows the optimizer's float32 weights, which "
                "training.use_distributed_optimizer divides over ranks; set use_distributed_optimizer = false, or "
                "model.dtype = 'float32'"
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
