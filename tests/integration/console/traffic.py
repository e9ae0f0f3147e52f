"""Turns as agents make them, put through every stream of a real broker: what a console has to show.

Each hop is the broker's own, as the services call it; only what a service would have to say is made up here.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hintloop_contract.broker import Broker, Entry
from hintloop_contract.codec import PackedMessage, encode_payload
from hintloop_contract.history import GateDecision, StepFigures, Trained, VersionNote
from hintloop_contract.messages import (
    Capture,
    Drop,
    JudgedTurn,
    Judgement,
    LinkedTurn,
    Message,
    Sample,
    Sampling,
    TurnRecord,
    VersionSpan,
    Vote,
)
from hintloop_contract.streams import CAPTURES, JUDGED, SAMPLES, TURNS
from hintloop_contract.tensors import pack
from msgspec.structs import replace
from tokenizers import Tokenizer

ENGINE = "http://127.0.0.1:8100"
NUM_TOP = 8
#: One consumer a process; two judges.
LINKER, TEACHER, TRAINER = "linker-node-a1", "teacher-node-b2", "trainer-node-c3"
JUDGES = ("judge-node-d4", "judge-node-e5")


@dataclass(frozen=True, kw_only=True)
class Said:
    """One exchange: what was asked, answered and said next, and what the judge made of it."""

    asked: str
    answer: str
    then: str
    score: int | None = -1
    hint: str | None = None
    drop: tuple[str, str, str] | None = None
    """Stage, reason and detail, where the turn ends early."""
    tools: list[object] | None = None
    earlier: Sequence[tuple[str, str]] = ()
    votes: tuple[Vote, ...] | None = None


def uuid7(ms: int, rng: random.Random) -> str:
    """An id as the proxy makes them: the time, and chance."""
    value = (ms << 80) | (0x7 << 76) | (rng.getrandbits(12) << 64) | (0b10 << 62) | rng.getrandbits(62)
    return str(uuid.UUID(int=value))


@dataclass
class Traffic:
    """Puts exchanges through the streams. Everything is chosen by ``seed``; ids follow Redis' clock."""

    broker: Broker
    tokenizer_dir: Path
    seed: int = 7
    step: int = 0
    version: int = 1
    _turns: dict[str, int] = field(default_factory=dict)
    _released: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.tokenizer = Tokenizer.from_file(str(self.tokenizer_dir / "tokenizer.json"))

    async def begin(self) -> None:
        """What services say of themselves once they run."""
        broker = self.broker
        await broker.ensure_groups()
        for stream, names in ((CAPTURES, [LINKER]), (TURNS, JUDGES), (JUDGED, [TEACHER]), (SAMPLES, [TRAINER])):
            for name in names:
                await broker.read(stream, name, 1, 1)
        await self.publish(reason="start")

    async def session(self, exchanges: Sequence[Said], *, tenant: str = "default") -> list[str]:
        """Turns of one session, in order; their ids."""
        session_id = uuid7(await self.broker.time_ms(), self.rng)
        return [await self.turn(said, session_id=session_id, tenant=tenant) for said in exchanges]

    async def turn(self, said: Said, *, session_id: str, tenant: str = "default", train: bool = True) -> str:
        """One turn as far as it comes: to its drop, to ``samples``, or (``train``) into the next step."""
        record, linked = await self._linked(said, session_id, tenant)
        if said.drop and said.drop[0] in ("capture", "link"):
            await self.drop(said.drop, turn_id=linked.turn_id, tenant=tenant)
            return linked.turn_id
        await self.broker.append(CAPTURES, self._capture(linked, tenant), tenant=tenant)
        await self._hop(CAPTURES, LINKER, TURNS, linked, record=record)
        if said.drop and said.drop[0] == "judge":
            await self._end(TURNS, self.rng.choice(JUDGES), said.drop)
            return linked.turn_id
        judgement = self._judgement(said)
        counters = ("hinted",) if said.hint else ()
        judged = JudgedTurn(turn=linked, judgement=judgement)
        await self._hop(TURNS, self.rng.choice(JUDGES), JUDGED, judged, counters=counters)
        if said.drop and said.drop[0] == "teach":
            await self._end(JUDGED, TEACHER, said.drop)
            return linked.turn_id
        await self._hop(JUDGED, TEACHER, SAMPLES, self._sample(linked, record, judgement))
        if said.drop:
            await self._end(SAMPLES, TRAINER, said.drop)
        elif train:
            await self.train()
        return linked.turn_id

    async def train(self) -> None:
        """One step with everything in ``samples``, published and noted as the trainer does."""
        entries = await self.broker.read(SAMPLES, TRAINER, 64, 1)
        if not entries:
            return
        self.step += 1
        notes = [self._trained(entry.message) for entry in entries if isinstance(entry.message, Sample)]
        await self.broker.count("batched", len(notes))
        await self.broker.remember([*notes, self._figures(len(notes))])
        await self.broker.finish(entries)
        await self.broker.count("trained", len(notes))
        if self.step % 8 == 5:
            version = await self.broker.next_version()
            reason = "mean entropy of answers 0.41 is below 0.5 of the base's 1.31"
            held = {"gate_answer_rate": 0.97, "gate_entropy": 0.41, "gate_length": 38.2, "gate_score": -0.1}
            await self.broker.remember(
                [GateDecision(version=version, step=self.step, outcome="held", reasons=(reason,), figures=held)]
            )
        else:
            await self.publish()

    async def publish(self, reason: str = "step") -> None:
        """A new version, released: noted, and said by trainer and engines."""
        broker, parent = self.broker, self.version
        self.version = await broker.next_version()
        self._released[str(self.version)] = self.step
        passed = {"gate_answer_rate": 1.0, "gate_entropy": round(1.1 + 0.2 * 0.985**self.step, 3), "gate_length": 41.5}
        first = reason == "start"
        decisions = (
            [] if first else [GateDecision(version=self.version, step=self.step, outcome="released", figures=passed)]
        )
        noted = VersionNote(
            version=self.version,
            step=self.step,
            parent=None if first else parent,
            run="0193",
            weights_hash=f"{self.rng.getrandbits(64):016x}",
            reason=reason,
        )
        await broker.remember([*decisions, noted])
        state = await broker.weights()
        await broker.set_weights(type(state)(current=self.version, updating=None))
        await broker.set_status("engines", {ENGINE: str(self.version), "http://127.0.0.1:8101": str(self.version)})
        await self.say()

    async def say(self, **more: str) -> None:
        """What the trainer says of itself."""
        kept = dict(list(self._released.items())[-13:-1])
        figures = {name: str(value) for name, value in self._figures(8).figures.items()} if self.step else {}
        fields = {"phase": "collecting", "step": str(self.step), "version": str(self.version), "run": "0193"}
        await self.broker.set_status(
            "trainer",
            {**fields, "trained": str(self.step * 8), "rollback_to": json.dumps(kept), **figures, **more},
        )

    async def drop(self, drop: tuple[str, str, str], *, turn_id: str | None = None, tenant: str = "default") -> str:
        """A drop of a turn that nobody linked."""
        turn_id = turn_id or uuid7(await self.broker.time_ms(), self.rng)
        stage, reason, detail = drop
        await self.broker.drop(None, Drop(turn_id=turn_id, stage=stage, reason=reason, detail=detail, tenant=tenant))
        return turn_id

    async def many(self, number: int, exchanges: Sequence[Said], *, turns_a_session: int = 8) -> None:
        """``number`` linked turns, quickly: captures in batches, links beside each other."""
        models = [await self._linked(said, "", "default") for said in exchanges]
        made, session_id, now_ms = [], "", await self.broker.time_ms()
        for index in range(number):
            if index % turns_a_session == 0:
                session_id = uuid7(now_ms, self.rng)
            record, linked = models[index % len(models)]
            turn_id, place = uuid7(now_ms, self.rng), index % turns_a_session
            made.append(
                (
                    replace(record, turn_id=turn_id),
                    replace(linked, turn_id=turn_id, session_id=session_id, turn_index=place),
                )
            )
        for start in range(0, number, 500):
            batch = made[start : start + 500]
            captures = [self._capture(linked, "default") for _, linked in batch]
            await self.broker.append_many(
                CAPTURES, [PackedMessage(one.turn_id, encode_payload(one)) for one in captures]
            )
            held = {entry.turn_id: entry for entry in await self.broker.read(CAPTURES, LINKER, 500, 1)}
            for part in range(0, len(batch), 50):
                await asyncio.gather(
                    *(
                        self.broker.commit(held[linked.turn_id], TURNS, linked, record=record)
                        for record, linked in batch[part : part + 50]
                    )
                )

    # What services would have said.

    async def _linked(self, said: Said, session_id: str, tenant: str) -> tuple[TurnRecord, LinkedTurn]:
        now_ms = await self.broker.time_ms()
        turn_id = uuid7(now_ms, self.rng)
        messages: list[dict[str, object]] = [
            {"role": "system", "content": "You are a coding agent. Be brief, and check before you act."}
        ]
        for asked, answered in said.earlier:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        messages.append({"role": "user", "content": said.asked})
        ids = self.ids(said.answer)
        index = self._turns[session_id] = self._turns.get(session_id, -1) + 1
        record = TurnRecord(
            turn_id=turn_id,
            messages=json.dumps(messages).encode(),
            tools=None if said.tools is None else json.dumps(said.tools).encode(),
            answer=json.dumps({"role": "assistant", "content": said.answer}).encode(),
            next_state=json.dumps([{"role": "user", "content": said.then}]).encode() if said.then else b"[]",
            prompt_ids=pack(self.tokenizer.encode(said.asked[:2000]).ids or [1], "int32"),
            response_ids=pack(ids, "int32"),
            logprobs=pack(self._engine(len(ids)), "float32"),
        )
        linked = LinkedTurn(
            turn_id=turn_id,
            tenant=tenant,
            session_id=session_id,
            turn_index=index,
            engine="vllm",
            engine_url=ENGINE,
            behaviour_space="processed",
            sampling=Sampling(temperature=0.7, top_p=0.95, max_tokens=512),
            finish_reason="stop",
            version_oldest=self.version,
            version_newest=self.version,
            spans=(VersionSpan(version=self.version, start=0, end=len(ids)),),
            num_prompt_tokens=len(record.prompt_ids),
            num_response_tokens=len(ids),
            captured_ms=now_ms,
            linked_ms=now_ms,
        )
        return record, linked

    def ids(self, text: str) -> list[int]:
        """The answer as its engine would have made it, with the token that ends it."""
        return [*self.tokenizer.encode(text.encode("utf-8", "replace").decode()).ids, 2]

    def _engine(self, count: int) -> np.ndarray:
        return -np.array([self.rng.expovariate(1.6) for _ in range(count)], dtype=np.float32) - 1e-4

    def _capture(self, linked: LinkedTurn, tenant: str) -> Capture:
        return Capture(
            turn_id=linked.turn_id,
            tenant=tenant,
            engine="vllm",
            engine_url=ENGINE,
            request=b"{}",
            start_ms=linked.captured_ms - 900,
            end_ms=linked.captured_ms,
        )

    def _judgement(self, said: Said) -> Judgement:
        votes = said.votes or (
            Vote(score=said.score, hint=said.hint),
            Vote(score=said.score, hint=said.hint),
            Vote(failed="the vote was cut by hint_max_tokens = 64"),
        )
        return Judgement(score=said.score, hint=said.hint, votes=votes, backend="llm", model="judge-7b")

    def _sample(self, linked: LinkedTurn, record: TurnRecord, judgement: Judgement) -> Sample:
        ids = np.frombuffer(record.response_ids.data, dtype="<i4")
        engine = np.frombuffer(record.logprobs.data, dtype="<f4")
        teacher = np.minimum(-1e-4, engine + self._shifts(len(ids))).astype(np.float32)
        size = self.tokenizer.get_vocab_size()
        others = np.array([[self.rng.randrange(200, size) for _ in range(NUM_TOP)] for _ in ids], dtype=np.int32)
        spread = -np.sort(np.array([[self.rng.uniform(0.7, 7) for _ in range(NUM_TOP)] for _ in ids]), axis=1)
        top_ids, top_logprobs = others.copy(), spread.astype(np.float32)
        for place, (token, logprob) in enumerate(zip(ids, teacher, strict=True)):
            rank = int(np.searchsorted(-top_logprobs[place], -logprob))
            if rank < NUM_TOP:
                top_ids[place, rank], top_logprobs[place, rank] = token, logprob
        return Sample(
            turn_id=linked.turn_id,
            tenant=linked.tenant,
            session_id=linked.session_id,
            prompt_ids=record.prompt_ids,
            response_ids=record.response_ids,
            behaviour_logprobs=record.logprobs,
            behaviour_space=linked.behaviour_space,
            sampling=linked.sampling,
            finish_reason=linked.finish_reason,
            version_oldest=linked.version_oldest,
            version_newest=linked.version_newest,
            captured_ms=linked.captured_ms,
            score=judgement.score,
            hint=judgement.hint,
            teacher_logprobs=pack(teacher, "float32"),
            teacher_topk_ids=pack(top_ids, "int32"),
            teacher_topk_logprobs=pack(top_logprobs, "float16"),
            teacher_model="teacher-7b",
        )

    def _shifts(self, count: int) -> np.ndarray:
        """What a hint does: little to most tokens, much to a few beside each other."""
        shifts = np.array([self.rng.gauss(0, 0.25) for _ in range(count)])
        for _ in range(max(1, count // 14)):
            start, length = self.rng.randrange(count), self.rng.randint(1, 4)
            shifts[start : start + length] += self.rng.choice((-1, -1, 1)) * self.rng.uniform(0.8, 6)
        return shifts

    def _trained(self, sample: Sample) -> Trained:
        assert sample.teacher_logprobs is not None
        engine = np.frombuffer(sample.behaviour_logprobs.data, dtype="<f4")
        teacher = np.frombuffer(sample.teacher_logprobs.data, dtype="<f4")
        noise = np.array([self.rng.gauss(0, 0.01) for _ in engine])
        student = np.minimum(-1e-4, engine + noise).astype(np.float32)
        return Trained(
            turn_id=sample.turn_id,
            step=self.step,
            version=self.version + 1,
            advantages=pack((teacher - student).astype(np.float32), "float32"),
            student_logprobs=pack(student, "float32"),
        )

    def _figures(self, samples: int) -> StepFigures:
        """Figures of a run that learns, more or less."""
        step, noise = self.step, random.Random(self.step).gauss
        loss = 0.42 * 0.985**step + noise(0, 0.02)
        mean = -0.35 * 0.985**step + noise(0, 0.03)
        figures = {
            "loss": loss,
            "loss_policy": loss * 0.96,
            "loss_kl": loss * 0.04,
            "advantage_mean": mean,
            "advantage_std": 1.1,
            "advantage_p5": mean - 1.9,
            "advantage_p50": mean / 4,
            "advantage_p95": mean + 1.4,
            "advantage_share_positive": 0.44,
            "advantage_share_negative": 0.52,
            "advantage_share_above_10": 0.0,
            "engine_difference_abs_mean": 0.008 + abs(noise(0, 0.001)),
            "engine_difference_max": 0.09 + abs(noise(0, 0.01)),
            "entropy": 1.1 + 0.25 * 0.985**step + noise(0, 0.02),
            "response_length": 44 + 14 * 0.985**step + noise(0, 3),
            "response_length_max": 190 + noise(0, 10),
            "score_mean": 0.45 - 1.05 * 0.985**step + noise(0, 0.06),
            "samples": float(samples),
            "staleness_mean": 0.6,
            "grad_norm": 1.2 + abs(noise(0, 0.3)),
            "clip_fraction": 0.02,
            "effective_learning_rate": 1e-5,
            "seconds_forward_backward": 3.1,
        }
        return StepFigures(step=step, version=self.version + 1, figures=figures)

    # Hops.

    async def _hop(self, stream, consumer, out, message: Message, **more) -> None:
        entry = await self._one(stream, consumer)
        assert await self.broker.commit(entry, out, message, **more)

    async def _end(self, stream, consumer, drop: tuple[str, str, str]) -> None:
        entry = await self._one(stream, consumer)
        stage, reason, detail = drop
        told = Drop(turn_id=entry.turn_id, stage=stage, reason=reason, detail=detail, tenant=entry.tenant)
        assert await self.broker.drop(entry, told)

    async def _one(self, stream, consumer) -> Entry[Message]:
        (entry,) = await self.broker.read(stream, consumer, 1, 100)
        return entry
