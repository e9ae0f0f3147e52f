"""What the parts of the training loop work with."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config

from hintloop_trainer.background import Background
from hintloop_trainer.filling import Filling
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.metrics.sinks import Sinks
from hintloop_trainer.points import Reached, pass_by
from hintloop_trainer.prm_client import PrmClient
from hintloop_trainer.prm_watch import PrmWatch
from hintloop_trainer.publish.protocol import Publisher
from hintloop_trainer.ranks import Ranks
from hintloop_trainer.samples import SampleSource
from hintloop_trainer.traces import TraceFile


@dataclass(frozen=True, slots=True)
class LoopDeps:
    """What the loop works with."""

    config: Config
    ranks: Ranks
    background: Background
    broker: Broker
    source: SampleSource
    publisher: Publisher
    probe_ids: list[int]
    sinks: Sinks
    trace_file: TraceFile
    filling: Filling
    prm: PrmClient
    watch: PrmWatch
    run: str
    """Id of this run of the trainer."""
    stop: threading.Event
    ending: asyncio.Event
    """Tells the background's lasting work to end."""
    gate: Gate | None = None
    """Looks at weights before they are released."""
    reached: Reached = pass_by
