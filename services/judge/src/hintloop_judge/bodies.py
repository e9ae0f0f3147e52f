"""Bodies of the judge's routes, with the examples that its OpenAPI page shows."""

from __future__ import annotations

from typing import Any

from hintloop_contract.messages import Vote
from pydantic import BaseModel, ConfigDict, Field

from hintloop_judge.backends import Opinion
from hintloop_judge.conversation import Exchange

_EXCHANGE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is a comet?"}],
    "answer": {"role": "assistant", "content": "A comet is an icy body. It has a nucleus, a coma and two tails."},
    "next_state": [{"role": "user", "content": "Too long. One short sentence please."}],
}
_FAILED_TOOL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Run the tests."}],
    "answer": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pytest"}'}}
        ],
    },
    "next_state": [{"role": "tool", "tool_call_id": "call_1", "content": "1 failed, 3 passed in 0.12s"}],
    "tools": [{"type": "function", "function": {"name": "bash"}}],
}


class ExchangeBody(BaseModel):
    """One answer to judge: chat messages before it, the answer, and the messages after it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXCHANGE, _FAILED_TOOL]})

    messages: list[dict[str, Any]]
    """The request's messages."""
    answer: dict[str, Any]
    """The assistant message."""
    next_state: list[dict[str, Any]] = Field(min_length=1)
    """Every message after the answer."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Tools of the request."""

    def exchange(self) -> Exchange:
        """As the backends take it."""
        return Exchange(tuple(self.messages), self.answer, tuple(self.next_state), tuple(self.tools))


class VoteBody(BaseModel):
    """One vote; ``failed`` says why it does not count."""

    score: int | None
    hint: str | None
    failed: str | None


class _Reply(BaseModel):
    failed: bool
    """Whether too few votes could be counted (`prm.quorum`)."""
    votes: list[VoteBody]
    """Every vote of the question, failed ones too."""
    backend: str
    """`llm`, `rules` or `rules_then_llm`."""
    model: str | None
    """The model asked, if any."""


class ScoreReply(_Reply):
    """What an answer is worth."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "score": -1,
                    "failed": False,
                    "votes": [{"score": -1, "hint": None, "failed": None}],
                    "backend": "llm",
                    "model": "judge-model",
                }
            ]
        }
    )

    score: int | None
    """1, 0 or -1; null when the votes failed, or nothing after the answer tells."""


class HintReply(_Reply):
    """What would have made an answer better."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "hint": "Answer in one short sentence.",
                    "failed": False,
                    "votes": [
                        {"score": None, "hint": "Answer in one short sentence.", "failed": None},
                        {"score": None, "hint": None, "failed": "cut by the token limit (prm.hint_max_tokens)"},
                    ],
                    "backend": "llm",
                    "model": "judge-model",
                }
            ]
        }
    )

    hint: str | None
    """A hint of `opd.min_hint_length` to `opd.max_hint_length` characters; null when there is none."""


def votes_of(opinion: Opinion) -> list[VoteBody]:
    """The opinion's votes."""
    return [_vote(vote) for vote in opinion.judgement.votes]


def _vote(vote: Vote) -> VoteBody:
    return VoteBody(score=vote.score, hint=vote.hint, failed=vote.failed)
