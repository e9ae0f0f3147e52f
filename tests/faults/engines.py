"""What a person with access to a vLLM server can do to it: load weights, name their version, flush its cache, ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

TIMEOUT_S = 120.0


def load(url: str, directory: Path, *, version: str, flush: bool = True) -> None:
    """Load weights and say that they are ``version``; without ``flush`` what was computed before stays in the cache."""
    body = {"method": "hintloop_reload", "kwargs": {"weights_path": str(directory.resolve())}}
    results = _post(url, "/collective_rpc", body)["results"]
    assert all(result["success"] for result in results), results
    if flush:
        assert _post(url, "/reset_prefix_cache?reset_running_requests=true")["success"]
    assert _post(url, "/update_weight_version", {"new_version": version})["success"]


def ask(url: str, prompts: list[list[int]], max_tokens: int = 1) -> None:
    """Let it answer prompts of ids, which its cache then holds."""
    body = {"model": model(url), "prompt": prompts, "max_tokens": max_tokens, "temperature": 0.0}
    _post(url, "/v1/completions", body)


def model(url: str) -> str:
    """The name of the model that it serves."""
    return str(httpx.get(f"{url}/v1/models", timeout=TIMEOUT_S).raise_for_status().json()["data"][0]["id"])


def _post(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    answered = httpx.post(f"{url}{path}", json=body, timeout=TIMEOUT_S)
    answered.raise_for_status()
    return answered.json()
