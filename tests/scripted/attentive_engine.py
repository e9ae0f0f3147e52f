"""A scripted vLLM whose next token depends on all that came before, so that caches, contexts and temperatures show.

``flaws``: ``cut`` (reads the last tokens of a prompt alone), ``tempered`` (scores at another temperature than 1), ``one
temperature`` (samples at its own, whatever is asked), ``stale cache`` (answers what it remembers by older weights),
``dated template`` (a chat's prompt has a system text that its tokenize route does not know).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.scripted.scoring_engine import SIZE, WireEngine, rendered

#: Tokens that a cut engine reads, and the temperature of one that is not at 1.
READ, OTHER = 40, 0.6


def distribution(ids: list[int], weights: float = 0.0, temperature: float = 1.0) -> np.ndarray:
    """float64 [SIZE], log-probabilities after ``ids``: far tokens matter less than near ones, and none matters not."""
    places = np.arange(1, len(ids) + 1)[::-1]
    state = float(np.sum(np.sin(np.asarray(ids, dtype=np.float64) * 1.7 + 0.3) / places))
    logits = 2.0 * np.sin(np.arange(SIZE) * (0.37 + 0.01 * weights) + 3.0 * state) / temperature
    result: np.ndarray = logits - np.log(np.exp(logits).sum())
    return result


@dataclass
class AttentiveEngine(WireEngine):
    """As a policy engine, too: it answers chats of one token and gives alternatives."""

    kind: str = "vllm"
    context: int = 2048
    weights: float = 0.0
    remembers: list[list[int]] = field(default_factory=list)
    """Prompts whose keys older weights computed."""

    def _after(self, ids: list[int], temperature: float = 1.0, *, weights: float | None = None) -> np.ndarray:
        read = ids[-READ:] if "cut" in self.flaws else ids
        return distribution(read, self.weights if weights is None else weights, temperature)

    def _rows(self, ids: list[int], top_k: int, temperature: float) -> list[Any]:
        rows: list[Any] = [None]
        for place in range(1, len(ids)):
            found = self._after(ids[:place], OTHER if "tempered" in self.flaws else 1.0)
            best = np.argsort(-found)[:top_k]
            rows.append((float(found[ids[place]]), [(int(token), float(found[token])) for token in best]))
        return rows

    def _vllm_post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/chat/completions":
            return self._chat(body)
        if path == "/v1/completions" and "prompt_logprobs" not in body:
            return self._next(body)
        return super()._vllm_post(path, body)

    def _next(self, body: dict[str, Any]) -> Any:
        temperature = OTHER if "one temperature" in self.flaws else body["temperature"]
        stale = "stale cache" in self.flaws and body["prompt"] in self.remembers
        found = self._after(body["prompt"], temperature, weights=self.weights - 3.0 if stale else None)
        best = np.argsort(-found)[: body["logprobs"]]
        top = {f"token_id:{int(token)}": float(found[token]) for token in best}
        return {"choices": [{"text": "", "logprobs": {"top_logprobs": [top]}}]}

    def _chat(self, body: dict[str, Any]) -> Any:
        text = rendered(body["messages"])
        if "dated template" in self.flaws:
            text = f"<system>today;{text}"
        ids = [ord(char) % SIZE for char in text]
        return {"choices": [{"message": {"content": "x"}}], "prompt_token_ids": ids}
