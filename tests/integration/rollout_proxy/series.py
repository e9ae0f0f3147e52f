"""Lives generated conversations through the real proxy and linker, and says what passed and what was dropped."""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from hintloop_contract.broker import Entry
from hintloop_contract.codec import decode_fields
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Capture, DropReason
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import CAPTURES, DROPS, TURNS
from hintloop_contract.tensors import unpack
from hintloop_rollout_proxy.capture_log import log_line
from hintloop_rollout_proxy.linker_task import LinkerTask
from hintloop_rollout_proxy.metrics import ProxyMetrics

from tests.scripted import wire
from tests.scripted.agent import Agent, PlannedEngine, Seen, captured_message, direct, message_of, says_something
from tests.scripted.answers import Fault, Given, Truth
from tests.scripted.engine import serving
from tests.scripted.plans import Plan, Step

CONCURRENT = 12


class SeeingBroker(RedisBroker):
    """Keeps the captures that the linker reads."""

    def __init__(self, url: str, policy: str) -> None:
        """On the Redis at ``url``."""
        super().__init__(connect(url), policy)
        self.captures: dict[str, Capture] = {}

    async def read(self, stream: Any, consumer: str, count: int, block_ms: int) -> list[Entry[Any]]:
        """Read, and keep."""
        entries = await super().read(stream, consumer, count, block_ms)
        if stream is CAPTURES:
            self.captures |= {entry.turn_id: entry.message for entry in entries}
        return entries


@dataclass
class Tally:
    """What was lived and what came of it."""

    num_requests: int = 0
    num_captures: int = 0
    num_turns: int = 0
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    drops: collections.Counter[str] = field(default_factory=collections.Counter)
    corrupted: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    """What an agent saw otherwise than it would have without a proxy."""

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__),
        )

    def __str__(self) -> str:
        """The numbers."""
        return (
            f"{self.num_requests} requests, {sum(self.faults.values())} of them faulty; {self.num_captures} captures, "
            f"{self.num_turns} turns; {len(self.corrupted)} corrupted passed, {len(self.lost)} good ones lost, "
            f"{len(self.unlike)} seen otherwise; dropped: {dict(self.drops)}; faults: {dict(self.faults)}"
        )

    def check(self) -> None:
        """Fail with everything that went wrong."""
        for name, found in (("corrupted", self.corrupted), ("lost", self.lost), ("unlike", self.unlike)):
            assert not found, f"{self}\n{name}:\n" + "\n".join(one[:3000] for one in found)


@asynccontextmanager
async def linking(broker: SeeingBroker) -> AsyncIterator[LinkerTask]:
    """A linker that lets every turn through, on ``broker``; at the end everything is settled."""
    config = Config.model_validate({"training": {"max_staleness_steps": 1_000_000}})
    linker, stop = LinkerTask(broker, config, ProxyMetrics()), asyncio.Event()
    task = asyncio.create_task(linker.run(stop))
    try:
        yield linker
    finally:
        stop.set()
        await task
    await linker.flush()


async def all_captures(broker: SeeingBroker, proxy_url: str) -> int:
    """Wait until the linker has read every capture that the proxy made; how many."""
    async with aiohttp.ClientSession() as session, session.get(proxy_url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    made = sum(int(float(line.split()[-1])) for line in lines if line.startswith("hintloop_proxy_captured_total{"))
    async with asyncio.timeout(60):
        while len(broker.captures) < made:
            await asyncio.sleep(0.05)
    assert len(broker.captures) == made
    return made


async def live(kind: str, plans: Sequence[Plan], start_proxy: Any, redis_url: str, folder: Path) -> Tally:
    """Live ``plans`` with engine ``kind`` and count."""
    policy = f"series-{kind}"
    broker = SeeingBroker(redis_url, policy)
    await broker.ensure_groups()
    engine = PlannedEngine(kind)
    async with serving(engine):
        words = ("--no-linker", "--set", f"policy.name={policy}", "--set", f"proxy.spool_dir={folder / kind}")
        proxy = await asyncio.to_thread(start_proxy, kind, engine.url, redis_url, *words)
        await asyncio.to_thread(proxy.wait, "/hintloop/ready")
        async with linking(broker):
            seen = await _live_all(proxy.url, engine, plans)
            made = await all_captures(broker, proxy.url)
            assert made >= sum(1 if one.step.hurts else len(one.step.said) for one in seen)
    turns, drops = await outcomes(broker)
    records = {turn_id: await broker.get_turn(turn_id) for turn_id in turns}
    await broker.close()
    tally = Judge(kind, engine, broker.captures, turns, records, drops).tally(seen)
    if tally.lost:
        path = folder / f"{kind}.jsonl"
        path.write_bytes(b"".join(log_line(capture) for capture in broker.captures.values()))
        tally.lost[0] += f"\nAll captures stand in {path}, which `hintloop link` reads."
    return tally


async def _live_all(url: str, engine: PlannedEngine, plans: Sequence[Plan]) -> list[Seen]:
    left = list(enumerate(plans))
    found: list[Seen] = []

    async def work(agent: Agent) -> None:
        while left:
            number, plan = left.pop()
            found.extend(await agent.live(plan, number))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        async with asyncio.TaskGroup() as workers:
            for _ in range(CONCURRENT):
                workers.create_task(work(Agent(url, engine, session)))
    return found


async def outcomes(broker: RedisBroker) -> tuple[dict[str, Any], dict[str, Any]]:
    """Turns and drops by turn id; no turn has two outcomes."""
    found: list[dict[str, Any]] = []
    for stream in (TURNS, DROPS):
        entries = await broker.client.xrange(broker.keys.stream(stream))
        messages = [decode_fields(fields, stream.message) for _, fields in entries]
        found.append({message.turn_id: message for message in messages})
        assert len(found[-1]) == len(entries), "settled twice"
    turns, drops = found
    assert not turns.keys() & drops.keys(), "settled twice"
    return turns, drops


class Judge:
    """Compares what was captured, linked and seen with what is true."""

    def __init__(
        self,
        kind: str,
        engine: PlannedEngine,
        captures: dict[str, Capture],
        turns: dict[str, Any],
        records: dict[str, Any],
        drops: dict[str, Any],
    ) -> None:
        """Everything that came of a series."""
        self._kind = kind
        self._engine = engine
        self._turns = turns
        self._records = records
        self._drops = drops
        self._captures = captures
        self._by_answer = {(one.response_id, one.choice): one for one in captures.values()}
        self._alike: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for one in captures.values():
            self._alike[said_in(one)].append(one.turn_id)
        self._tally = Tally(num_captures=len(captures), num_turns=len(turns))

    def tally(self, seen: Sequence[Seen]) -> Tally:
        """The numbers."""
        tally = self._tally
        tally.num_requests = len(seen)
        tally.drops.update(drop.reason for drop in self._drops.values())
        unsettled = self._captures.keys() - self._turns.keys() - self._drops.keys()
        tally.lost += [f"never settled: {turn_id}" for turn_id in unsettled]
        for one in seen:
            if one.step.fault is not None:
                tally.faults[str(one.step.fault)] += 1
            self._compare_seen(one)
            self._judge(one)
        return tally

    def _compare_seen(self, seen: Seen) -> None:
        problem = unlike(seen, self._engine.given.get(seen.number), self._kind)
        if problem:
            self._tally.unlike.append(f"{seen.number}: {problem}\n{seen.step}\n{seen.data[-3000:]!r}")

    def _judge(self, seen: Seen) -> None:
        given = self._engine.given[seen.number]
        for index in range(len(given.choices)):
            names = [each.response_id for each in given.choices]
            capture = next((self._by_answer[n, index] for n in names if (n, index) in self._by_answer), None)
            if capture is None:
                if seen.step.fault is None:
                    self._tally.lost.append(f"{seen.number}: no capture of choice {index}")
                continue
            self._judge_choice(seen, given, index, capture)

    def _judge_choice(self, seen: Seen, given: Given, index: int, capture: Capture) -> None:
        tally, name = self._tally, f"{seen.number} choice {index}"
        said, struck = given.choices[index].said, given.choices[index].said.fault
        if capture.problem is None:
            wrong = untrue(capture, given.truth(index)) or (
                "" if captured_message(capture.answer or b"{}") == message_of(seen.plan, said) else "another answer"
            )
            if wrong or (seen.step.fault is not None and struck in MUST_DROP and not counted_on_the_way(seen, struck)):
                tally.corrupted.append(f"{name}: {wrong or struck} passed\n{seen.step}\n{capture}")
        elif seen.step.fault is None and says_something_by(seen.plan, said):
            tally.lost.append(f"{name}: {capture.problem} {capture.problem_detail}\n{seen.step}")
        if seen.step.fault is None and says_something_by(seen.plan, said) and seen.followed:
            self._judge_link(seen, index, name, capture)

    def _judge_link(self, seen: Seen, index: int, name: str, capture: Capture) -> None:
        turn, drop = self._turns.get(capture.turn_id), self._drops.get(capture.turn_id)
        chosen = self._by_answer.get((capture.response_id, seen.step.chosen), capture)
        if self._stands_for(chosen):
            return
        if index != seen.step.chosen:
            if turn is not None or drop is None or drop.reason != DropReason.NOT_CONTINUED:
                self._tally.lost.append(f"{name}: not continued, but {turn} {drop}")
            return
        if turn is None:
            self._tally.lost.append(f"{name}: linked to nothing: {drop}\n{seen.step}")
            return
        record = self._records[capture.turn_id]
        after = json.loads(record.next_state)
        if after != seen.followed:
            self._tally.lost.append(f"{name}: next state {after} instead of {seen.followed}")
        wrong = untrue(record, self._engine.given[seen.number].truth(index))
        if wrong:
            self._tally.corrupted.append(f"{name}: {wrong} in its turn")

    def _stands_for(self, capture: Capture) -> bool:
        """Whether another answer was taken for this one, and no id tells them apart: the same words to the same words,
        as `docs/linking.md` says of a request that is asked again."""
        others = [turn_id for turn_id in self._alike[said_in(capture)] if turn_id != capture.turn_id]
        return capture.session_key is None and capture.turn_id not in self._turns and any(map(self._turns.get, others))


def said_in(capture: Capture) -> tuple[str, str]:
    """What a request says, and the text that answered it."""
    asked = json.loads(capture.request)
    prompt = next((asked[name] for name in ("messages", "prompt", "text", "input_ids") if name in asked), None)
    return json.dumps(prompt), str(json.loads(capture.answer or b"{}").get("content"))


MUST_DROP = frozenset(Fault) - {Fault.DUPLICATED_CHUNK, Fault.LOST_CHUNK}


def counted_on_the_way(seen: Seen, struck: Fault | None) -> bool:
    """Whether an answer without its last usage is counted all the same: its client asked for usage in every chunk."""
    asked = {"include_usage", "continuous_usage_stats"} <= set(seen.step.asks)
    return struck is Fault.NO_USAGE and seen.step.stream and asked


def says_something_by(plan: Plan, said: Any) -> bool:
    """Whether an answer says something by the API of its plan."""
    return says_something(said) if plan.path == wire.CHAT else bool(said.content)


def untrue(captured: Any, truth: Truth) -> str:
    """What of ids and log-probabilities differs from the truth, exactly."""
    if captured.prompt_ids is None or tuple(unpack(captured.prompt_ids).tolist()) != truth.prompt_ids:
        return "other prompt ids"
    if captured.response_ids is None or tuple(unpack(captured.response_ids).tolist()) != truth.response_ids:
        return "other response ids"
    if captured.logprobs is None or not np.array_equal(unpack(captured.logprobs), np.array(truth.logprobs, np.float32)):
        return "other log-probabilities"
    return ""


def unlike(seen: Seen, given: Given | None, kind: str) -> str:
    """How what was seen differs from what the engine said to this client, or ``""``."""
    if given is None:
        return "the engine was never asked"
    fault, events = seen.step.fault, direct(seen, given, kind)
    whole = b"".join(events)
    if fault in (Fault.TRUNCATED, Fault.DISCONNECTED):
        return _unlike_cut(seen, whole, fault)
    if seen.status != 200 or seen.broken:
        return f"status {seen.status}, broken {seen.broken}"
    expected = "text/event-stream; charset=utf-8" if seen.step.stream else "application/json"
    if not seen.headers.get("content-type", "").startswith(expected):
        return f"content type {seen.headers.get('content-type')}"
    return "" if seen.data == whole else f"other bytes; expected\n{whole[-3000:]!r}"


def _unlike_cut(seen: Seen, whole: bytes, fault: Fault) -> str:
    if seen.status == 502:
        # A body that is cut, or a connection that is, before anything of it went on.
        return "" if not seen.step.stream or fault is Fault.DISCONNECTED else "502 in a stream"
    if fault is Fault.DISCONNECTED and not seen.broken:
        return "the agent was not told that the answer broke off"
    if not seen.step.stream and any(mark in seen.data for mark in ours_in(seen.step)):
        return "something of ours was shown"
    return "" if whole.startswith(seen.data) or not seen.step.stream else "not how the answer begins"


def ours_in(step: Step) -> list[bytes]:
    """What stands in no whole answer unless its client asked for it."""
    marks = [b"sglext"]
    if not {"return_token_ids", "return_prompt_token_ids"} & set(step.asks):
        marks += [b'"prompt_token_ids":[', b'"token_ids":[', b"response_token_ids"]
    if not {"logprobs", "return_logprob", "return_meta_info"} & set(step.asks):
        marks += [b'"logprobs":{', b"output_token_logprobs"]
    return marks
