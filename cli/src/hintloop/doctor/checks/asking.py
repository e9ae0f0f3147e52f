"""Small questions to a policy engine, in its dialect: one token after given ids, and scores of given ids.

Nothing of it is anybody's turn: it goes to the engine, not through the proxy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hintloop_contract.ids import adapter_name
from numpy.typing import NDArray

from hintloop.doctor.look import Look

if TYPE_CHECKING:
    from hintloop_teacher.http import EngineClient
    from hintloop_teacher.scoring import ForcedScorer

#: Alternatives asked for; the least that any engine gives.
NUM_ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class NextToken:
    """The alternatives at one place: log-probability in nats by token id, in the engine's own space."""

    logprobs: dict[int, float]

    @property
    def best(self) -> tuple[int, float]:
        """The likeliest."""
        return max(self.logprobs.items(), key=lambda item: item[1])


class PolicyEngine:
    """One policy engine, asked by the teacher's client."""

    def __init__(self, look: Look, url: str) -> None:
        """``look.teacher`` is built."""
        assert look.teacher is not None
        self.url = url
        self._look = look
        self._client: EngineClient = look.teacher.renderer.engines.client(url)
        self._scorer: ForcedScorer | None = None

    async def scorer(self) -> ForcedScorer:
        """What scores given ids under the weights that agents are answered with.

        Raises:
            HintloopError: the engine is away, or gives no facts.
        """
        from hintloop_teacher.dialects.sglang import SglangDialect
        from hintloop_teacher.dialects.vllm import VllmDialect
        from hintloop_teacher.scoring import ForcedScorer

        if self._scorer is None:
            assert self._look.teacher is not None
            sglang = self._look.config.rollout.engine == "sglang"
            dialect = SglangDialect(self._client) if sglang else VllmDialect(self._client)
            adapter = self._adapter() if not sglang else ""
            size = self._look.teacher.engine.vocabulary.size
            facts = await dialect.facts(adapter)
            self._scorer = ForcedScorer(dialect, facts, vocabulary_size=size, max_concurrency=2)
        return self._scorer

    def _adapter(self) -> str:
        current = self._look.snapshot.weights.current if self._look.snapshot else None
        return adapter_name(current) if self._look.config.lora.as_adapter and current is not None else ""

    async def says(self) -> str | None:
        """The version that the engine says it serves; ``None`` where it says none.

        Raises:
            HintloopError: the engine is away, or refuses.
        """
        scorer = await self.scorer()
        if scorer.dialect.name == "sglang":
            return scorer.facts.weights
        found = (await self._client.get("/weight_info")).get("weight_version")
        return None if found is None else str(found)

    async def score(self, ids: list[int]) -> NDArray[np.float32]:
        """Log-probability at temperature 1 of every id after the first, float32 ``[len(ids) - 1]``.

        Raises:
            HintloopError: the engine is away, or does not score.
        """
        return (await (await self.scorer()).score(ids[:1], ids[1:])).logprobs

    async def next_token(self, ids: list[int], temperature: float) -> NextToken:
        """The alternatives for the token after ``ids``.

        Raises:
            HintloopError: the engine is away, or refuses.
            KeyError, IndexError, TypeError, ValueError: it answers in another form.
        """
        scorer = await self.scorer()
        if scorer.dialect.name == "sglang":
            return await self._sglang(ids, temperature)
        body: dict[str, Any] = {
            "model": scorer.facts.model,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": -1,
            "logprobs": NUM_ALTERNATIVES,
            "return_tokens_as_token_ids": True,
        }
        answer = await self._client.post("/v1/completions", body)
        top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        return NextToken({int(name.removeprefix("token_id:")): float(value) for name, value in top.items()})

    async def _sglang(self, ids: list[int], temperature: float) -> NextToken:
        sampling = {"max_new_tokens": 1, "temperature": temperature, "top_p": 1.0, "ignore_eos": True}
        body = {
            "input_ids": ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": NUM_ALTERNATIVES,
        }
        answer = await self._client.post("/generate", body)
        top = answer["meta_info"]["output_top_logprobs"][0]
        return NextToken({int(entry[1]): float(entry[0]) for entry in top})

    async def chat_prompt_ids(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """The prompt's ids of a chat completion of one token; ``None`` where the engine does not tell them.

        Raises:
            HintloopError: the engine is away, or refuses.
        """
        body: dict[str, Any] = {
            "model": (await self.scorer()).facts.model,
            "messages": messages,
            "max_tokens": 1,
            "return_token_ids": True,
            "return_prompt_token_ids": True,
        }
        answer = await self._client.post("/v1/chat/completions", body)
        choices = answer.get("choices")
        found = answer.get("prompt_token_ids")
        if found is None and isinstance(choices, list) and choices and isinstance(choices[0], dict):
            found = choices[0].get("prompt_token_ids")
        whole = isinstance(found, list) and all(type(token) is int for token in found)
        return found if whole else None


async def teacher_of(look: Look) -> None:
    """Build ``look.teacher``, which holds the clients; nothing is contacted.

    Raises:
        HintloopError: the configuration does not let it be built.
    """
    from hintloop_teacher.wiring import build_deps

    if look.teacher is None:
        look.teacher = await build_deps(look.config, look.broker, directory=look.loaded.directory)
