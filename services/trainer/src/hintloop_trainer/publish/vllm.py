"""Publishing to vLLM (its development routes must be on: ``VLLM_SERVER_DEV_MODE=1``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp, as_logprobs, as_version, reading

#: Method of the worker extension that also repacks a tied output head; see `engines/vllm`.
EXTENSION_METHOD = "hintloop_reload"
PLAIN_METHOD = "reload_weights"


class VllmControl:
    """Control of one vLLM server."""

    def __init__(self, http: EngineHttp) -> None:
        """Talk over ``http``."""
        self.url = http.url
        self._http = http

    async def pause(self) -> None:
        """Freeze requests where they are; they go on at :meth:`resume`."""
        await self._http.post("/pause?mode=keep")

    async def replace(self, directory: Path, version: int) -> None:
        """Reload, drop the prefix cache with running requests recomputed, and set the version."""
        await self._reload(directory)
        flushed = await self._http.post("/reset_prefix_cache?reset_running_requests=true")
        if not isinstance(flushed, dict) or flushed.get("success") is not True:
            raise PublishError(self.url, "flush", f"the prefix cache was not reset: {flushed}")
        named = await self._http.post("/update_weight_version", {"new_version": str(version)})
        if not isinstance(named, dict) or named.get("success") is not True:
            raise PublishError(self.url, "set version", f"{named}")

    async def _reload(self, directory: Path) -> None:
        try:
            await self._rpc(EXTENSION_METHOD, directory)
        except PublishError as error:
            if f"{EXTENSION_METHOD!r} is not implemented" not in error.detail:
                raise
            # A server without the extension. Whether its own method loaded everything, the probe tells.
            await self._rpc(PLAIN_METHOD, directory)

    async def _rpc(self, method: str, directory: Path) -> None:
        body = {"method": method, "kwargs": {"weights_path": str(directory)}}
        answer = await self._http.post("/collective_rpc", body)
        results: list[Any] = answer.get("results", []) if isinstance(answer, dict) else []
        failed = [result for result in results if isinstance(result, dict) and result.get("success") is not True]
        if failed:
            raise PublishError(self.url, method, str(failed[0].get("message", failed[0])))
        if method == EXTENSION_METHOD and not results:
            raise PublishError(self.url, method, f"no worker answered: {answer}")

    async def resume(self) -> None:
        """Go on with the frozen requests."""
        await self._http.post("/resume")

    async def version(self) -> int | None:
        """The version set last, forgotten when the server restarts."""
        answer = await self._http.get("/weight_info")
        with reading(self.url, "version"):
            return as_version(answer.get("weight_version"))

    async def score(self, token_ids: list[int]) -> list[float]:
        """Prompt log-probabilities."""
        models = await self._http.get("/v1/models")
        with reading(self.url, "probe"):
            name = models["data"][0]["id"]
        answer = await self._http.post(
            "/v1/completions",
            {
                "model": name,
                "prompt": token_ids,
                "max_tokens": 1,
                "temperature": 0.0,
                "prompt_logprobs": 0,
            },
        )
        with reading(self.url, "probe"):
            rows = answer["choices"][0]["prompt_logprobs"]
            pairs = zip(rows[1:], token_ids[1:], strict=True)
            values = [row.get(str(token), {}).get("logprob") for row, token in pairs]
        return as_logprobs(self.url, values, len(token_ids) - 1)
