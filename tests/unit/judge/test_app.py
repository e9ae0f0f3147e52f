import json

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_judge import routes
from hintloop_judge.app import make_app, prm_part
from hintloop_judge.wiring import build_deps
from httpx import ASGITransport, AsyncClient

CONFIG = Config.model_validate({"prm": {"judge_backend": "rules"}})
BODY = {
    "messages": [{"role": "user", "content": "What is rain?"}],
    "answer": {"role": "assistant", "content": "Water."},
    "next_state": [{"role": "user", "content": "Too long, one short sentence please."}],
}


async def test_routes_judge_as_the_stream_does() -> None:
    broker = MemoryBroker()
    deps = await build_deps(CONFIG, broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        hints = (await http.post("/v1/hints", json=BODY)).json()
        assert (hints["hint"], hints["failed"], hints["backend"]) == ("One short sentence.", False, "rules")
        assert (await http.post("/v1/scores", json=BODY)).json()["score"] == -1
        stopped = {**BODY, "next_state": [{"role": "user", "content": "[Request interrupted by user]"}]}
        for route in ("scores", "hints"):
            reply = (await http.post(f"/v1/{route}", json=stopped)).json()
            assert (reply[route[:-1]], reply["votes"], reply["failed"]) == (None, [], False)
        bodies: list[dict[str, object]] = [{**BODY, "next_state": []}, {**BODY, "extra": 1}, {"messages": []}]
        for broken in bodies:
            reply = await http.post("/v1/scores", json=broken)
            assert reply.status_code == 422
        assert (await http.get("/v1/prm")).json()["judge"]["asks"] == ["hint"]
        assert (await http.get("/health")).status_code == 200
        assert "hintloop_judge_votes" in (await http.get("/metrics")).text
    await broker.close()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("", 422, "the body: Field required"),
        ("[]", 422, "the body: Input should be"),
        ('{"messages": [', 422, "the body is no JSON: Expecting value at character 14"),
        ("[" * 5000, 422, "nests too deep"),
        ('{"answer": ' + "9" * 5000 + "}", 422, "a number too long"),
        (json.dumps({**BODY, "tools": [5]}), 422, "tools[0]: 5: Input should be a valid dictionary"),
        (json.dumps({**BODY, "next_state": []}), 422, "next_state: List should have at least 1 item"),
        (json.dumps({**BODY, "extra": float("nan")}), 422, "extra: nan: Extra inputs"),
        (json.dumps({**BODY, "messages": "\ud800"}), 422, "messages: '\\ud800': Input should be a valid list"),
        (json.dumps({**BODY, "answer": {"\ud800": 1}}), 200, ""),
        (json.dumps({**BODY, "next_state": [{"role": "user", "content": "Too long \ud800, be brief."}]}), 200, ""),
        (json.dumps({**BODY, "tools": [{"function": "f"}, {"function": [1]}, {}]}), 200, ""),
    ],
)
async def test_odd_bodies_have_a_clear_answer(body: str, status: int, said: str) -> None:
    broker = MemoryBroker()
    deps = await build_deps(CONFIG, broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        for route in ("hints", "scores"):
            reply = await http.post(f"/v1/{route}", content=body, headers={"content-type": "application/json"})
            assert reply.status_code == status
            if said:
                assert said in reply.json()["detail"]["message"]
    await broker.close()


async def test_a_body_past_the_limit_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_BODY_BYTES", 1000)
    broker = MemoryBroker()
    deps = await build_deps(CONFIG, broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        assert (await http.post("/v1/scores", json=BODY)).status_code == 200
        refused = await http.post("/v1/scores", json={**BODY, "tools": [{"description": "x" * 1000}]})
        assert (refused.status_code, refused.json()["detail"]["reason"]) == (413, "too_large")
    await broker.close()


async def test_an_absent_engine_is_503() -> None:
    broker = MemoryBroker()
    deps = await build_deps(Config.model_validate({"prm": {"prm_url": "http://127.0.0.1:9"}}), broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        reply = await http.post("/v1/scores", json=BODY)
        assert reply.status_code == 503
        assert "prm-engine" in reply.json()["detail"]["message"]
        assert reply.json()["detail"]["reason"] == "prm_engine"
    await deps.backend.close()
    await broker.close()


async def test_the_openapi_page_shows_bodies_with_examples() -> None:
    broker = MemoryBroker()
    deps = await build_deps(CONFIG, broker)
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        page = (await http.get("/openapi.json")).json()
        schemas = page["components"]["schemas"]
        for route, reply in (("/v1/hints", "HintReply"), ("/v1/scores", "ScoreReply")):
            post = page["paths"][route]["post"]
            assert post["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith(reply)
            assert {"401", "422", "503"} <= set(post["responses"])
        # The examples are real: the judge takes the bodies, and its answers have the shape of the shown ones.
        for body in schemas["ExchangeBody"]["examples"]:
            for route, reply in (("hints", "HintReply"), ("scores", "ScoreReply")):
                answer = await http.post(f"/v1/{route}", json=body)
                assert answer.status_code == 200
                assert set(answer.json()) == set(schemas[reply]["examples"][0])
    await broker.close()


async def test_prm_says_what_is_asked_and_of_whom() -> None:
    broker = MemoryBroker()
    changes = {"prm": {"prm_url": "http://127.0.0.1:9", "hint_temperature": 0.0}, "opd": {"judge_vote_count": 5}}
    deps = await build_deps(Config.model_validate(changes), broker)
    await deps.backend.ready()
    part = prm_part(deps)
    assert part["url"] == "http://127.0.0.1:9/v1"
    assert "127.0.0.1:9" in part["problem"]
    assert (part["structured_output"], part["several_choices"]) == (None, None)
    assert part["votes_asked"] == {"score": 1, "hint": 1}
    assert [note.split(" votes")[0] for note in part["notes"]] == ["5 score", "5 hint"]
    await deps.backend.close()
    await broker.close()
