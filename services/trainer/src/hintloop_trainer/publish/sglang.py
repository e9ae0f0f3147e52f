"""Publishing to SGLang, by weights on a shared disk."""

from __future__ import annotations

from pathlib import Path

from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp, as_logprobs, as_version, reading


class SglangControl:
    """Control of one SGLang server."""

    def __init__(self, http: EngineHttp) -> None:
        """Talk over ``http``."""
        self.url = http.url
        self._http = http

    async def pause(self) -> None:
        """Put running requests back into the queue: only then can the cache be flushed."""
        await self._http.post("/pause_generation", {"mode": "retract"})

    async def replace(self, directory: Path, version: int) -> None:
        """One call loads, flushes and sets the version."""
        answer = await self._http.post(
            "/update_weights_from_disk",
            {"model_path": str(directory), "weight_version": str(version), "flush_cache": True, "keep_pause": True},
        )
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PublishError(self.url, "load", f"{answer}")
        reported = await self.version()
        if reported != version:
            raise PublishError(self.url, "set version", f"the engine reports {reported}, expected {version}")

    async def resume(self) -> None:
        """Take the queue up again."""
        await self._http.post("/continue_generation", {})

    async def version(self) -> int | None:
        """The version of the last update."""
        answer = await self._http.get("/model_info")
        with reading(self.url, "version"):
            return as_version(answer.get("weight_version"))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Input log-probabilities; the first entry is of no token and null."""
        answer = await self._http.post(
            "/generate",
            {
                "input_ids": token_ids,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
                "return_logprob": True,
                "logprob_start_len": 0,
            },
        )
        with reading(self.url, "probe"):
            values = [row[0] for row in answer["meta_info"]["input_token_logprobs"][1:]]
        return as_logprobs(self.url, values, len(token_ids) - 1)
