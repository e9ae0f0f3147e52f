"""A local stack that faults are injected into: real Redis, real engines, real services, wires between them.

    agents -> rollout-proxy -> [policy wire] -> policy engine (vLLM)
                  Redis                              ^
              judge + teacher -> [prm wire] -> PRM engine (vLLM)
                     \\-> judge's chat endpoint (scripted)
              trainer -> [policy wire]

A service is restarted with another configuration in a second or two; engines are never restarted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from hintloop.local import ports
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.tensors import unpack
from redis import Redis
from tokenizers import Tokenizer

from . import agent
from .agent import Day
from .background import Background
from .judging import ScriptedJudge
from .services import Given, Service
from .traffic_keys import TrafficKeys
from .wire import Wire

POLICY = "faults"
#: Small, and filled by one conversation, so that a step takes seconds.
BATCH_SIZE = 2
SERVICE_TIMEOUT_S = 120.0
TRAINER_TIMEOUT_S = 300.0
JUDGE_KEY = "HINTLOOP_PRM__JUDGE_API_KEY"
#: Where a rendered user message ends in the model's template.
END_OF_MESSAGE = "<|im_end|>"

Values = dict[str, dict[str, Any]]


@dataclass
class Deployment:
    """The stack; a context manager. ``given`` is what it is configured by now beside its own files."""

    folder: Path
    policy_engine: str
    prm_engine: str
    model_dir: Path
    redis_url: str
    given: Given = field(default_factory=Given)
    services: dict[str, Service] = field(default_factory=dict)
    _version_before: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Deployment:
        enter = self._stack.enter_context
        try:
            self.background = enter(Background())
            self.policy_wire = enter(Wire(self.background, self.policy_engine))
            self.prm_wire = enter(Wire(self.background, self.prm_engine))
            self.judge = enter(ScriptedJudge(self.background))
            self.redis = Redis.from_url(self.redis_url)
            self._stack.callback(self.redis.close)
            self.traffic = TrafficKeys(self.redis, POLICY)
            self.tokenizer = Tokenizer.from_file(str(self.model_dir / "tokenizer.json"))
            self._configure()
            self._stack.callback(self.stop)
            for name in ("rollout-proxy", "prm", "trainer"):
                self.services[name].start(self.given, SERVICE_TIMEOUT_S, wait=False)
            for name, service in self.services.items():
                service.wait_ready(TRAINER_TIMEOUT_S if name == "trainer" else SERVICE_TIMEOUT_S)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self) -> None:
        """End the services, the trainer last."""
        for service in self.services.values():
            service.stop()

    def _configure(self) -> None:
        state = self.state_dir
        (state / "logs").mkdir(parents=True)
        self.base = self.folder / "base.toml"
        self.base.write_text(tomli_w.dumps(self._base()), encoding="utf-8")
        proxy, prm, grpc = ports.choose(3)
        self._proxy_url, self._prm_url = f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{prm}"
        decided: Values = {
            "redis": {"url": self.redis_url},
            "proxy": {"port": proxy, "spool_dir": str(state / "spool")},
            "prm": {"port": prm, "grpc_port": grpc},
            "policy": {"name": POLICY},
        }
        self.decided = state / "config.toml"
        self.decided.write_text(tomli_w.dumps(decided), encoding="utf-8")
        self.given = Given(env={JUDGE_KEY: self.judge.habits.key})
        checks: dict[str, Callable[[], str]] = {
            "rollout-proxy": lambda: _http(f"{self._proxy_url}/hintloop/ready"),
            "prm": lambda: _http(f"{self._prm_url}/ready"),
            "trainer": lambda: "" if self.version() != self._version_before else "no weights released",
        }
        self.services = {
            name: Service(name, [self.base], self.decided, state / "logs" / f"{name}.log", ready)
            for name, ready in checks.items()
        }

    def _base(self) -> Values:
        """What a user of this stack would have written."""
        return {
            "model": {"student_model_path": str(self.model_dir), "dtype": "float32", "max_seq_len": 1024},
            "rollout": {
                "engine": "vllm",
                "rollout_batch_size": BATCH_SIZE,
                "temperature": 0.7,
                "max_new_tokens": 16,
                "session_timeout_sec": 60.0,
            },
            "training": {
                "train_batch_size": BATCH_SIZE,
                "micro_batch_size": 2,
                "learning_rate": 2e-5,
                "save_interval": 1000,
                "max_staleness_steps": 16,
                "checkpoint_dir": str(self.state_dir / "checkpoints"),
            },
            "advantage": {"estimator": "on_policy_distillation"},
            "prm": {
                "prm_url": self.prm_wire.url,
                "judge_url": self.judge.url,
                "judge_model": "judge-large",
                "engine": "vllm",
                "judge_backend": "llm",
                "circuit_open_s": 1.0,
            },
            "opd": {"log_teacher_logprobs": True, "judge_vote_count": 2, "judge_temperature": 0.5},
            "policy": {"engines": [self.policy_wire.url], "served_model_name": "policy"},
            "publishing": {"weights_dir": str(self.state_dir / "weights")},
            "linker": {"settle_ms": 200, "reorder_ms": 50},
            "gate": {"enabled": False},
        }

    @property
    def state_dir(self) -> Path:
        """Where commands find the deployment."""
        return self.folder / "state"

    def version(self) -> int:
        """The released version; 0 before there is one."""
        found = self.redis.hget(f"hl:{{{POLICY}}}:weights", "current")
        return int(found) if found else 0

    def updating(self) -> bool:
        """Whether a version is being published."""
        return bool(self.redis.hget(f"hl:{{{POLICY}}}:weights", "updating"))

    def count(self, step: str) -> int:
        """How many turns came to a step of the funnel."""
        found = self.redis.hget(f"hl:{{{POLICY}}}:funnel", step)
        return int(found) if found else 0

    def dropped(self) -> dict[str, int]:
        """Drops by ``stage:reason``."""
        found = self.redis.hgetall(f"hl:{{{POLICY}}}:drop_counts")
        return {name.decode(): int(number) for name, number in found.items() if int(number)}

    def step(self) -> int:
        """Optimizer steps of the trainer that runs."""
        found = self.redis.hget(f"hl:{{{POLICY}}}:status:trainer", "step")
        return int(found) if found else 0

    def overlay(self, name: str, values: Mapping[str, Mapping[str, Any]]) -> Given:
        """A configuration file laid over the deployment's."""
        path = self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
        return Given(files=[path])

    @contextmanager
    def with_given(self, given: Given, *services: str, wait: bool = True) -> Iterator[None]:
        """Be configured so meanwhile; these services are restarted with it, and without it at the end."""
        before, self.given = self.given, self.given.and_also(given)
        try:
            self.restart(*services, wait=wait)
            yield
        finally:
            self.given = before
            self.restart(*services)

    def restart(self, *services: str, wait: bool = True) -> None:
        """End these services and start them as configured now."""
        if not services:
            return
        for name in services:
            self.services[name].stop()
        self._version_before = self.version()
        for name in services:
            self.services[name].start(self.given, SERVICE_TIMEOUT_S, wait=False)
        if not wait:
            return
        for name in services:
            self.services[name].wait_ready(TRAINER_TIMEOUT_S if name == "trainer" else SERVICE_TIMEOUT_S)

    def talk(self, num: int, day: Day | None = None) -> int:
        """Let an agent hold ``num`` conversations at once; how many requests were answered."""
        talking = agent.talk(f"{self._proxy_url}/v1", num, day or Day())
        return asyncio.run(talking)

    def wait_for(self, what: str, reached: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Until something came about."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if reached():
                return
            time.sleep(0.1)
        logs = "\n".join(f"--- {service.log.name}\n{service.tail(12)}" for service in self.services.values())
        raise AssertionError(f"{what} did not come about within {timeout_s:.0f} s: {self.dropped()}\n{logs}")

    def train(self, steps: int, day: Day | None = None) -> None:
        """Let agents talk until the trainer has made so many more steps and published."""
        goal = self.step() + steps
        while self.step() < goal:
            self.talk(1, day or Day(turns=1 + BATCH_SIZE))
            self.wait_for("a step, or quiet streams", partial(self._moved_from, self.step()), 120.0)
            # Answers made before the release would be of weights that are not the ones trained.
            self.wait_for("the release", self.settled, 120.0)

    def settled(self) -> bool:
        """Whether the trainer has released what it has trained, and waits for samples."""
        phase = self.redis.hget(f"hl:{{{POLICY}}}:status:trainer", "phase")
        return phase == b"collecting" and not self.updating()

    def _moved_from(self, step: int) -> bool:
        return self.step() > step or not self._on_the_way()

    def _on_the_way(self) -> bool:
        """Whether a turn is before its teacher, or a batch is being trained."""
        waiting = sum(self.redis.xlen(f"hl:{{{POLICY}}}:{name}") for name in ("captures", "turns", "judged"))
        trained = self.count("trained")
        return bool(waiting > self.idle_captures()) or self.count("scored") - trained >= BATCH_SIZE

    def idle_captures(self) -> int:
        """Captures that wait for their next state."""
        pending = self.redis.xpending(f"hl:{{{POLICY}}}:captures", "linker")
        return int(pending["pending"])

    def quiet(self, timeout_s: float = 60.0) -> None:
        """Wait until nothing is on its way, but what waits for its next state or for its batch."""
        time.sleep(0.6)
        self.wait_for("quiet streams", lambda: not self._on_the_way(), timeout_s)

    def recorded_prompts(self, most: int = 32) -> list[list[int]]:
        """Ids of the newest prompts that the history holds, as they were served."""
        return asyncio.run(self._prompts())[-most:]

    async def _prompts(self) -> list[list[int]]:
        broker, after, prompts = RedisBroker(connect(self.redis_url), POLICY), "0-0", []
        try:
            while entries := await broker.history(after, 100):
                after = entries[-1].entry_id
                prompts += [unpack(entry.record.prompt_ids).tolist() for entry in entries if entry.record is not None]
        finally:
            await broker.close()
        return prompts

    def ids(self, text: str) -> list[int]:
        """Token ids of bare text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _http(url: str) -> str:
    try:
        status = httpx.get(url, timeout=5.0).status_code
    except httpx.HTTPError as error:
        return f"{url}: {type(error).__name__}"
    return "" if status == 200 else f"{url} answers {status}"
