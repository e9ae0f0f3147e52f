"""The door of the judge's routes."""

from __future__ import annotations

from hintloop_contract.config.access import key_hash
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge.app import make_app
from hintloop_judge.wiring import build_deps
from httpx import ASGITransport, AsyncClient

KEYS = ["plain-key", "schlüssel-钥匙", {"hash": key_hash("hashed-key")}]
ACCEPTED = [
    (b"Authorization", "Bearer plain-key"),
    (b"Authorization", "Bearer schlüssel-钥匙"),
    (b"x-api-key", "hashed-key"),
    (b"api-key", "plain-key"),
]
BODY = {
    "messages": [{"role": "user", "content": "What is rain?"}],
    "answer": {"role": "assistant", "content": "Water."},
    "next_state": [{"role": "user", "content": "Too long, one short sentence please."}],
}


async def test_configured_keys_are_needed_but_for_health_and_metrics() -> None:
    broker = MemoryBroker()
    config = Config.model_validate({"prm": {"judge_backend": "rules", "api_keys": KEYS}})
    deps = await build_deps(config, broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        for method, path in (("POST", "/v1/scores"), ("POST", "/v1/hints"), ("GET", "/v1/prm")):
            body = BODY if method == "POST" else None
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                refused = await http.request(method, path, json=body, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert "prm.api_keys" in refused.json()["detail"]["message"]
                assert "wrong" not in refused.text
            for name, value in ACCEPTED:
                known = [(name, value.encode())]
                assert (await http.request(method, path, json=body, headers=known)).status_code == 200
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/metrics")).status_code == 200
    await broker.close()
