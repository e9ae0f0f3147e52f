"""Routes: the allow-list, what passes, and the proxy's own answers."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/collective_rpc"),
        ("POST", "/update_weights_from_disk"),
        ("GET", "/v1/chat/completions/render"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/"),
        ("GET", "/flush_cache"),
        ("GET", "/hintloop/nothing"),
        ("GET", "/v1/models/../pause"),
        ("GET", "/v1%2fmodels/../pause"),
    ],
)
async def test_everything_else_is_404(method: str, path: str, fake_engine: Any, proxy: Any) -> None:
    from yarl import URL

    async with proxy() as running:
        url = URL(running.url + path, encoded=True)
        async with running.session.request(method, url) as response:
            assert response.status == 404
            error = (await response.json())["error"]
    assert error["code"] == "path_not_allowed"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages", "/v1/responses", "/props", "/version"])
async def test_listed_paths_pass_untouched(path: str, fake_engine: Any, proxy: Any) -> None:
    fake_engine.model = "policy"
    async with proxy() as running:
        headers = {"authorization": "Bearer k", "x-anything": "1"}
        async with running.session.post(running.url + path + "?a=b%20c", data=b'{"x": 1}', headers=headers) as response:
            assert response.status == 418
            echoed = await response.json()
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert echoed["path"] == path + "?a=b%20c"
    assert echoed["body"] == '{"x": 1}'
    sent = {name.lower(): value for name, value in echoed["headers"].items()}
    assert (sent["authorization"], sent["x-anything"]) == ("Bearer k", "1")
    generating = path in ("/v1/messages", "/v1/responses")
    assert (f'hintloop_proxy_untranslated_total{{path="{path}"}} 1.0' in metrics) is generating


async def test_models_carry_the_configured_name(fake_engine: Any, proxy: Any) -> None:
    async with proxy() as running:
        document = await (await running.session.get(running.url + "/v1/models")).json()
        assert [model["id"] for model in document["data"]] == ["policy"]
        one = await (await running.session.get(running.url + "/v1/models/policy")).json()
        assert one["id"] == "policy"
        async with running.session.get(running.url + "/v1/models/other") as response:
            assert response.status == 404


async def test_own_routes(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy() as running:
        await running.ask({"messages": [{"role": "user", "content": "hi"}]})
        async with running.session.get(running.url + "/hintloop/health") as response:
            assert response.status == 200
        async with running.session.get(running.url + "/hintloop/ready") as response:
            assert response.status == 200
            state = await response.json()
        metrics = await (await running.session.get(running.url + "/metrics")).text()
        async with running.session.head(running.url + "/") as response:
            assert response.status == 200
    assert state["engines"][0]["behaviour_space"] == "processed"
    assert 'hintloop_proxy_requests_total{path="/v1/chat/completions",status="200"} 1.0' in metrics


async def test_paths_that_strangers_make_up_are_one_label(fake_engine: Any, proxy: Any) -> None:
    async with proxy() as running:
        for path in ("/hintloop/made-up", "/metrics-made-up", "/made-up", "/v1/models/made-up", "/hintloop/health"):
            await running.session.get(running.url + path)
        text = await (await running.session.get(running.url + "/metrics")).text()
    assert "made-up" not in text
    assert 'path="/hintloop/health",status="200"} 1.0' in text


async def test_large_body_is_refused(fake_engine: Any, proxy: Any) -> None:
    async with proxy(proxy={"max_request_bytes": 1000}) as running:
        status, data = await running.ask({"messages": [{"role": "user", "content": "x" * 2000}]})
    assert (status, json.loads(data)["error"]["code"]) == (413, "request_too_large")


async def test_a_body_that_is_no_object_goes_to_the_engine(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_bad_temperature")
    async with proxy() as running:
        async with running.session.post(running.url + "/v1/chat/completions", data=b"[]") as response:
            assert response.status == 400


@pytest.mark.parametrize(
    "member",
    ['"messages":' + "[" * 3000 + "]" * 3000, '"temperature":1' + "0" * 400],
    ids=["deep", "digits"],
)
async def test_unreadable_body_is_400_and_counted(member: str, fake_engine: Any, proxy: Any) -> None:
    path = "/v1/chat/completions"
    async with proxy() as running:
        async with running.session.post(running.url + path, data=f"{{{member}}}".encode()) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert (error["type"], error["code"]) == ("invalid_request_error", "bad_request")
    assert 'hintloop_proxy_refused_total{code="bad_request"} 1.0' in metrics
    assert f'hintloop_proxy_requests_total{{path="{path}",status="400"}} 1.0' in metrics


async def test_own_failure_is_said_in_the_apis_own_shape(
    fake_engine: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any) -> None:
        raise KeyError("a bug")

    async with proxy() as running:
        monkeypatch.setattr("hintloop_rollout_proxy.app.read_fields", fail)
        status, data = await running.ask({"messages": []})
        monkeypatch.undo()
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert (status, json.loads(data)["error"]["code"]) == (500, "internal_error")
    assert 'hintloop_proxy_requests_total{path="/v1/chat/completions",status="500"} 1.0' in metrics


async def test_readiness_shows_a_task_that_died(fake_engine: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*words: Any) -> None:
        raise RuntimeError("a bug in the writer")

    monkeypatch.setattr("hintloop_rollout_proxy.writer.CaptureWriter.run", fail)
    async with proxy() as running:
        async with running.session.get(running.url + "/hintloop/ready") as response:
            assert response.status == 503
            state = await response.json()
    assert state["tasks"]["writer"].startswith("failed: RuntimeError at test_app.py:")
    assert state["tasks"]["engine watch"] == "running"
