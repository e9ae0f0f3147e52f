"""What serving a request needs, wired once in `wiring`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hintloop_contract.config.schema import Config
from hintloop_contract.tracing import Tracing

from hintloop_rollout_proxy.apis.translation import TranslatedApi
from hintloop_rollout_proxy.background import Background
from hintloop_rollout_proxy.clock import RedisClock
from hintloop_rollout_proxy.engines.dialect import Dialect
from hintloop_rollout_proxy.flight import InFlight
from hintloop_rollout_proxy.gate import Gate
from hintloop_rollout_proxy.intake import Intake
from hintloop_rollout_proxy.metrics import ProxyMetrics
from hintloop_rollout_proxy.readiness import EngineWatch
from hintloop_rollout_proxy.scrubbing import ScrubbingStage
from hintloop_rollout_proxy.upstream import EnginePool
from hintloop_rollout_proxy.versions import VersionView
from hintloop_rollout_proxy.writer import CaptureWriter


@dataclass(frozen=True, slots=True)
class ProxyDeps:
    """Dependencies of the app. ``engine_key`` is set upstream; ``None`` passes the client's key through.
    Captures go in by ``intake``; ``scrubbing`` (when on) and ``writer`` are the tasks behind it."""

    config: Config
    gate: Gate
    dialect: Dialect
    pool: EnginePool
    watch: EngineWatch
    clock: RedisClock
    versions: VersionView
    flight: InFlight
    intake: Intake
    scrubbing: ScrubbingStage | None
    writer: CaptureWriter
    metrics: ProxyMetrics
    engine_key: str | None
    background: Background
    tracing: Tracing | None = None
    translated: Mapping[str, TranslatedApi] = field(default_factory=dict)
