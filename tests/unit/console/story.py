"""Turns as the history tells them, for tests of the console."""

from __future__ import annotations

import json

import numpy as np
from hintloop_contract.codec import encode_payload
from hintloop_contract.history import HistoryEntry, StepFigures, Told, Trained
from hintloop_contract.messages import Drop, JudgedTurn, Judgement, LinkedTurn, Sample, Sampling, TurnRecord, Vote
from hintloop_contract.tensors import pack

T0 = 1_764_450_000_000
RESPONSE = [19556, 216, 28120]


def linked(turn_id: str, session_id: str = "s1", index: int = 0, **more) -> LinkedTurn:
    values = {
        "turn_id": turn_id,
        "session_id": session_id,
        "turn_index": index,
        "engine": "vllm",
        "engine_url": "http://e",
        "behaviour_space": "processed",
        "sampling": Sampling(temperature=0.7),
        "version_oldest": 3,
        "version_newest": 3,
        "num_prompt_tokens": 4,
        "num_response_tokens": len(RESPONSE),
        "captured_ms": T0,
        "linked_ms": T0,
    }
    return LinkedTurn(**{**values, **more})


def record(turn_id: str, said: str = "How are you?", answer: str = "Quite well.", then: str = "Shorter!") -> TurnRecord:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "an old question"},
        {"role": "assistant", "content": "an old answer"},
        {"role": "user", "content": said},
    ]
    return TurnRecord(
        turn_id=turn_id,
        messages=json.dumps(messages).encode(),
        answer=json.dumps({"role": "assistant", "content": answer}).encode(),
        next_state=json.dumps([{"role": "user", "content": then}]).encode(),
        prompt_ids=pack([1, 2, 3, 4], "int32"),
        response_ids=pack(RESPONSE, "int32"),
        logprobs=pack([-0.5, -0.25, -1.5], "float32"),
    )


def judged(turn_id: str, score: int | None = -1, hint: str | None = "Answer in one sentence.", **more) -> JudgedTurn:
    votes = (Vote(score=score, hint=hint), Vote(failed="cut"))
    return JudgedTurn(
        turn=linked(turn_id, **more), judgement=Judgement(score=score, hint=hint, votes=votes, backend="rules")
    )


def sample(
    turn_id: str, session_id: str = "s1", score: int | None = -1, hint: str | None = "Answer in one sentence."
) -> Sample:
    return Sample(
        turn_id=turn_id,
        session_id=session_id,
        prompt_ids=pack([1, 2, 3, 4], "int32"),
        response_ids=pack(RESPONSE, "int32"),
        behaviour_logprobs=pack([-0.5, -0.25, -1.5], "float32"),
        behaviour_space="processed",
        sampling=Sampling(temperature=0.7),
        version_oldest=3,
        version_newest=3,
        captured_ms=T0,
        score=score,
        hint=hint,
        teacher_logprobs=pack([-0.25, -0.5, -14.0], "float32"),
        teacher_topk_ids=pack([[19556, 216], [216, 5], [28120, 0]], "int32"),
        teacher_topk_logprobs=pack([[-0.25, -2.0], [-0.5, -1.0], [-0.1, -3.0]], "float16"),
        teacher_model="prm",
    )


def trained(turn_id: str, step: int = 7, advantages: tuple[float, ...] = (0.25, -0.25, -12.5)) -> Trained:
    return Trained(
        turn_id=turn_id,
        step=step,
        version=step + 1,
        advantages=pack(np.array(advantages), "float32"),
        student_logprobs=pack([-0.5, -0.25, -1.5], "float32"),
    )


def drop(turn_id: str, reason: str = "no_hint", stage: str = "judge") -> Drop:
    return Drop(turn_id=turn_id, stage=stage, reason=reason, detail="none said")


class Story:
    """Numbers entries as Redis does: one each second."""

    def __init__(self, start_ms: int = T0) -> None:
        self._ms = start_ms

    def entry(self, kind: str, message: Told, kept: TurnRecord | None = None, tenant: str = "default") -> HistoryEntry:
        self._ms += 1000
        return HistoryEntry(
            f"{self._ms}-0",
            kind,
            getattr(message, "turn_id", ""),
            tenant,
            message,
            kept,
            data=encode_payload(message),
            record_data=b"" if kept is None else encode_payload(kept),
        )

    def whole(self, turn_id: str, *, step: int = 7, **said: str) -> list[HistoryEntry]:
        """A turn from its link to its step."""
        return [
            self.entry("turn", linked(turn_id), record(turn_id, **said)),
            self.entry("judged", judged(turn_id)),
            self.entry("sample", sample(turn_id)),
            self.entry("trained", trained(turn_id, step)),
        ]

    def step(self, number: int, loss: float = 0.5) -> HistoryEntry:
        return self.entry("step", StepFigures(step=number, version=number + 1, figures={"loss": loss}))
