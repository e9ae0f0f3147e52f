"""Publishing to vLLM (its development routes must be on: ``VLLM_SERVER_DEV_MODE=1``).

By disk it reloads; by process group it follows its weight-transfer protocol, with the backend of `engines/vllm`; an
adapter is loaded beside those that answers are on their way with.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp, adapters_of, as_logprobs, as_version, reading
from hintloop_trainer.publish.group import Meeting
from hintloop_trainer.publish.tensors import Portion

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
        await self._take(version)

    async def _take(self, version: int) -> None:
        """Flush what was computed with other weights, then take the version."""
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

    async def num_workers(self) -> int:
        """Workers over all kinds of parallelism."""
        answer = await self._http.get("/get_world_size")
        with reading(self.url, "world size"):
            return int(answer["world_size"])

    async def join(self, meeting: Meeting) -> None:
        """Start the weight transfer."""
        info = {
            "master_address": meeting.address,
            "master_port": meeting.port,
            "rank_offset": 1,
            "world_size": meeting.world_size,
            "group_name": meeting.name,
            "backend": meeting.backend,
            "timeout_s": meeting.timeout_s,
        }
        await self._http.post("/init_weight_transfer_engine", {"init_info": info})

    async def leave(self, meeting: Meeting) -> None:
        """End the weight transfer."""
        await self._http.post("/shutdown_weight_transfer_engine")

    async def begin_update(self) -> None:
        """Open a session, after ending one that was left open."""
        try:
            await self._http.post("/start_weight_update")
        except PublishError as error:
            if "already" not in error.detail:
                raise
            with contextlib.suppress(PublishError):
                await self.abandon_update("a new update begins")
            await self._http.post("/start_weight_update")

    async def receive(self, portion: Portion, version: int) -> None:
        """One announcement; the workers load tensor by tensor."""
        info = {"names": portion.names, "dtypes": portion.dtypes, "shapes": portion.shapes}
        await self._http.post("/update_weights", {"update_info": info})

    async def finish_update(self, version: int) -> None:
        """Close the session, flush, take the version."""
        await self._http.post("/finish_weight_update", {})
        await self._take(version)

    async def abandon_update(self, reason: str) -> None:
        """A session ends with any update that fails: ask for one that does."""
        await self._http.post("/update_weights", {"update_info": {"abandon": reason}})

    async def resume(self) -> None:
        """Go on with the frozen requests."""
        await self._http.post("/resume")

    async def version(self) -> int | None:
        """The version set last, forgotten when the server restarts."""
        answer = await self._http.get("/weight_info")
        with reading(self.url, "version"):
            return as_version(answer.get("weight_version"))

    async def adapters(self) -> list[str]:
        """Adapters are listed as models with a parent."""
        return adapters_of(self.url, await self._http.get("/v1/models"))

    async def load_adapter(self, name: str, directory: Path) -> None:
        """Load it under a name of its own.

        Never in place: vLLM would read an adapter that was loaded so from the disk again at every step.
        """
        await self._http.tell("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)})

    async def unload_adapter(self, name: str) -> None:
        """New requests do not find it any more; those on their way end with it."""
        await self._http.tell("/v1/unload_lora_adapter", {"lora_name": name})

    async def score(self, token_ids: list[int], adapter: str | None = None) -> list[float]:
        """Prompt log-probabilities."""
        models = await self._http.get("/v1/models")
        with reading(self.url, "probe"):
            name = adapter or models["data"][0]["id"]
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
