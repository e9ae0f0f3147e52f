"""The door of the teacher's routes."""

from __future__ import annotations

from pathlib import Path

from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher.app import make_app
from hintloop_teacher.wiring import build_deps
from httpx import ASGITransport, AsyncClient

from .test_app import save_model

BODY = {"prompt_ids": [1], "response_ids": [2]}


async def test_configured_keys_are_needed_but_for_health_and_metrics(tmp_path: Path) -> None:
    broker = MemoryBroker()
    settings = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "prm": {"prm_url": "http://127.0.0.1:9", "api_keys": ["the-key"]},
    }
    deps = await build_deps(Config.model_validate(settings), broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            refused = await http.post("/v1/forced_logprobs", json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert "prm.api_keys" in refused.json()["detail"]["message"]
            assert (await http.get("/v1/prm", headers=headers)).status_code == 401
        allowed = {"Authorization": "Bearer the-key"}
        # Past the door: the PRM engine is away.
        assert (await http.post("/v1/forced_logprobs", json=BODY, headers=allowed)).status_code == 503
        assert (await http.get("/v1/prm", headers=allowed)).json()["teacher"]["probed"] is False
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
    await deps.renderer.close()
    await deps.engine.close()
    await broker.close()
