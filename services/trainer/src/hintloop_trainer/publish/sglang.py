"""Publishing to SGLang: from a shared disk, in a process group, or an adapter beside the weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hintloop_trainer.errors import PublishError
from hintloop_trainer.publish.engines import EngineHttp, adapters_of, as_logprobs, as_version, reading
from hintloop_trainer.publish.group import Meeting
from hintloop_trainer.publish.tensors import Portion


class SglangControl:
    """Control of one SGLang server."""

    def __init__(self, http: EngineHttp) -> None:
        """Talk over ``http``."""
        self.url = http.url
        self._http = http
        self._group = ""

    async def pause(self) -> None:
        """Put running requests back into the queue: only then can the cache be flushed."""
        await self._http.post("/pause_generation", {"mode": "retract"})

    async def replace(self, directory: Path, version: int) -> None:
        """One call loads, flushes and sets the version."""
        await self._asked(
            "/update_weights_from_disk",
            {"model_path": str(directory), "weight_version": str(version), "flush_cache": True, "keep_pause": True},
        )
        await self._check_version(version)

    async def _asked(self, path: str, body: dict[str, Any]) -> None:
        """Ask for something and read whether it was done: a flush that was not is told here too."""
        answer = await self._http.post(path, body)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PublishError(self.url, path, f"{answer}")

    async def _check_version(self, version: int) -> None:
        reported = await self.version()
        if reported != version:
            raise PublishError(self.url, "set version", f"the engine reports {reported}, expected {version}")

    async def num_workers(self) -> int:
        """Tensor-parallel ranks: the only ones that SGLang takes into the group."""
        answer = await self._http.get("/server_info")
        with reading(self.url, "server info"):
            return int(answer["tp_size"])

    async def join(self, meeting: Meeting) -> None:
        """Join as the ranks behind the trainer's."""
        await self._asked(
            "/init_weights_update_group",
            {
                "master_address": meeting.address,
                "master_port": meeting.port,
                "rank_offset": 1,
                "world_size": meeting.world_size,
                "group_name": meeting.name,
                "backend": meeting.backend,
            },
        )
        self._group = meeting.name

    async def leave(self, meeting: Meeting) -> None:
        """Destroy the group."""
        await self._asked("/destroy_weights_update_group", {"group_name": meeting.name})

    async def begin_update(self) -> None:
        """Open a session, after ending one that was left open."""
        try:
            await self._asked("/begin_weight_update", {})
        except PublishError as error:
            if "already" not in error.detail:
                raise
            await self._asked("/end_weight_update", {})
            await self._asked("/begin_weight_update", {})

    async def receive(self, portion: Portion, version: int) -> None:
        """One portion; the last one flushes and names the version."""
        body: dict[str, Any] = {
            "names": portion.names,
            "dtypes": portion.dtypes,
            "shapes": portion.shapes,
            "group_name": self._group,
            "flush_cache": portion.last,
        }
        if portion.last:
            body["weight_version"] = str(version)
        await self._asked("/update_weights_from_distributed", body)

    async def finish_update(self, version: int) -> None:
        """Close the session."""
        await self._asked("/end_weight_update", {})
        await self._check_version(version)

    async def abandon_update(self, reason: str) -> None:
        """Close the session, if one is open."""
        with contextlib.suppress(PublishError):
            await self._asked("/end_weight_update", {})

    async def resume(self) -> None:
        """Take the queue up again."""
        await self._http.post("/continue_generation", {})

    async def version(self) -> int | None:
        """The version of the last update."""
        answer = await self._http.get("/model_info")
        with reading(self.url, "version"):
            return as_version(answer.get("weight_version"))

    async def adapters(self) -> list[str]:
        """Adapters are listed as models with a parent."""
        return adapters_of(self.url, await self._http.get("/v1/models"))

    async def load_adapter(self, name: str, directory: Path) -> None:
        """Load it under a name of its own."""
        await self._asked("/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)})

    async def unload_adapter(self, name: str) -> None:
        """New requests do not find it any more; SGLang answers once those on their way have ended."""
        await self._asked("/unload_lora_adapter", {"lora_name": name})

    async def score(self, token_ids: list[int], adapter: str | None = None) -> list[float]:
        """Input log-probabilities; the first entry is of no token and null."""
        body: dict[str, Any] = {
            "input_ids": token_ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        if adapter:
            body["lora_path"] = adapter
        answer = await self._http.post("/generate", body)
        with reading(self.url, "probe"):
            values = [row[0] for row in answer["meta_info"]["input_token_logprobs"][1:]]
        return as_logprobs(self.url, values, len(token_ids) - 1)
