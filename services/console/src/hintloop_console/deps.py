"""What the routes work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from hintloop_contract.broker import Broker
from hintloop_contract.config import LoadedConfig
from prometheus_client import CollectorRegistry

from hintloop_console.access import Access
from hintloop_console.diagnosis import LookFailures
from hintloop_console.doctor_runs import DoctorRuns
from hintloop_console.loop_view import LoopView
from hintloop_console.reader import Reader
from hintloop_console.store import Store
from hintloop_console.telling import Teller
from hintloop_console.token_texts import TokenTexts


@dataclass(slots=True)
class ConsoleDeps:
    """What the console works with. Built by ``wiring.deps_of``."""

    loaded: LoadedConfig
    broker: Broker
    store: Store
    teller: Teller
    reader: Reader
    view: LoopView
    access: Access
    doctor: DoctorRuns
    tokens: TokenTexts
    failures: LookFailures = field(default_factory=LookFailures)
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=False))
