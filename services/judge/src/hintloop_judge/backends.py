"""What a judge backend is, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hintloop_contract.messages import Judgement

from hintloop_judge.conversation import Exchange


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judgement, and the questions (``score``, ``hint``) whose votes reached no quorum."""

    judgement: Judgement
    failed: frozenset[str] = frozenset()

    def why_failed(self) -> str:
        """The votes' reasons, each once."""
        reasons = dict.fromkeys(vote.failed for vote in self.judgement.votes if vote.failed)
        return "; ".join(reason for reason in reasons if reason)


class Backend(Protocol):
    """One way to judge."""

    name: str

    @property
    def model(self) -> str | None:
        """The model asked, if any."""
        ...

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/prm`` shows of it, ``backend`` and ``model`` among it."""
        ...

    async def judge(self, exchange: Exchange, *, score: bool, hint: bool) -> Opinion:
        """Answer the wanted questions. Raises ``DependencyError`` when what the backend depends on is away."""
        ...

    async def ready(self) -> bool:
        """Whether what the backend depends on is there."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
