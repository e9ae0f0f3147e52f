"""Sections of what agents talk to: policy engine, proxy, linker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from hintloop_contract.config.access import ApiKeys
from hintloop_contract.config.section import (
    MAX_SECONDS,
    NonNegativeFloat,
    Port,
    Positive,
    PositiveFloat,
    Section,
    http_address,
)

Milliseconds = Annotated[int, Field(ge=0, le=MAX_SECONDS * 1000)]


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
    session_timeout_sec: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 300.0
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
    api_keys: ApiKeys = Field(default_factory=list)
    """Keys of our own that clients must present (strings, or entries of `hintloop keys new`); empty passes the
    client's key through untouched."""
    request_timeout_s: PositiveFloat = 600.0
    """Longest answer."""
    engine_wait_s: NonNegativeFloat = 30.0
    """How long a request of which nothing was answered waits for an engine that cannot be reached (one that restarts);
    0 answers 502 at once."""
    max_request_bytes: Positive = 32 * 1024 * 1024
    """Largest request body."""
    spool_dir: Path = Path(".hintloop/spool")
    """Where captures wait while Redis is away."""
    spool_max_bytes: Positive = 1024 * 1024 * 1024
    """Most bytes that may wait there."""
    max_captures: Positive = 100_000
    """Most captures in Redis that no linker has settled; past it requests are served and dropped as `backpressure`."""
    scrub: Literal["off", "secrets", "personal", "both"] = "off"
    """Mask secrets (keys, tokens, passwords), personal data (e-mail, phone, card, IBAN, SSN, public IPv4) or both in
    what is stored; agents and engine see everything as it is."""
    scrub_phone_regions: list[Annotated[str, Field(pattern=r"^[A-Z]{2}$")]] = Field(default_factory=lambda: ["US"])
    """Countries whose phone numbers are found in national form, too; `+…` is found anyway."""
    train_scrubbed: bool = False
    """Train turns in which something was masked: their token ids, which still tell it, are then stored."""


class LinkerSection(Section):
    """The linker."""

    settle_ms: Milliseconds = 2000
    """How long an uncertain link waits for a better one."""
    reorder_ms: Milliseconds = 200
    """How long a capture waits for others that ended before it and come in later, from another proxy."""
    doubt_ms: Milliseconds = 30_000
    """How long a link waits when its request may yet show as a side call (a memory flush, a compaction)."""
    max_requests: Annotated[int, Field(ge=100)] = 50_000
    """Most requests remembered; past it the oldest are settled before their session timeout."""
    capture_log: Path | None = None
    """File to which every capture is added as a line of JSON, for `hintloop link`. It holds prompts and answers."""
    lease_ms: Annotated[int, Field(ge=1000, le=MAX_SECONDS * 1000)] = 10_000
    """Length of the active linker's lease."""
