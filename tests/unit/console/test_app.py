"""The API: every answer is what its document says, and nobody writes who may not."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from hintloop_console import bodies
from hintloop_console.answers import HEADERS
from hintloop_console.lists import TurnFilter
from hintloop_console.reading import MAX_PAGE
from hintloop_console.store import NUM_READERS
from hintloop_console.turn_view import exported
from hintloop_contract.broker import WeightsState
from hintloop_contract.control import Command, ControlOutcome
from hintloop_contract.diagnosis.alarms import Alarm
from hintloop_contract.errors import DependencyError
from hintloop_contract.history import GateDecision, VersionNote
from hintloop_contract.messages import VersionSpan
from hintloop_contract.recorded import decode_line

from tests.unit.console.conftest import FROM_HERE
from tests.unit.console.story import RESPONSE, Story, drop, linked, record


def told(site):
    story = Story()
    site.tell(
        *story.whole("a"),
        story.entry("turn", linked("b", spans=(VersionSpan(version=3, start=0, end=3),)), record("b")),
        story.entry("drop", drop("b")),
        story.entry("drop", drop("side", "side", "capture")),
        story.step(7),
        story.entry("version", VersionNote(version=8, step=7, parent=3)),
        story.entry("gate", GateDecision(version=8, step=7, outcome="released", figures={"gate_length": 3.0})),
    )
    return story


async def test_answers_are_what_the_document_says(site):
    told(site)
    await site.broker.set_status("trainer", {"step": "7", "rollback_to": '{"8": true}'})
    alarm = Alarm(cause="no_hints", since_ms=1, seen="none", evidence={"n": 4})
    await site.broker.set_alarms("w", 5, [alarm], [], lease_ms=1000)
    for path, body in {
        "/me": bodies.Me,
        "/loop": bodies.Loop,
        "/sessions": bodies.Sessions,
        "/turns": bodies.Turns,
        "/turns/a": bodies.Turn,
        "/turns/b": bodies.Turn,
        "/turns/side": bodies.Turn,
        "/steps": bodies.Steps,
        "/advantages?first_step=1": bodies.Advantages,
        "/versions": bodies.Versions,
        "/drops?minutes=60": bodies.Drops,
        "/alarms": bodies.Alarms,
        "/doctor": bodies.Doctor,
        "/health": bodies.Status,
    }.items():
        answer = await site.json(path)
        body.model_validate(answer)
        assert answer.get("rows") != [], "something is listed"


async def test_the_document_names_every_route(site):
    document = await site.json("/openapi.json")
    assert set(document["paths"]) >= {f"/api/v1{path}" for path in ("/loop", "/turns", "/turns/{turn_id}", "/events")}
    kept = Path(__file__).parents[3] / "docs" / "console-openapi.json"
    assert document == json.loads(kept.read_text()), f"GET /api/v1/openapi.json is another; write it to {kept}"
    assert document["paths"]["/api/v1/turns"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]


async def test_a_turn_is_shown_with_all_that_is_known_of_it(site):
    told(site)
    turn = await site.json("/turns/a?top=1")
    assert [token["id"] for token in turn["tokens"]] == RESPONSE
    assert turn["tokens"][2] == {
        "id": RESPONSE[2],
        "text": None,
        "behaviour": -1.5,
        "student": -1.5,
        "teacher": -14.0,
        "advantage": -12.5,
        "top": [{"id": RESPONSE[2], "text": None, "logprob": pytest.approx(-0.1, abs=1e-3)}],
    }
    assert turn["messages"][-1] == {"role": "user", "content": "How are you?"}
    assert turn["answer"]["content"] == "Quite well." and turn["next_state"][0]["content"] == "Shorter!"
    assert turn["votes"] == [
        {"score": -1, "hint": "Answer in one sentence.", "failed": None},
        {"score": None, "hint": None, "failed": "cut"},
    ]
    assert turn["drop"] is None and turn["teacher_model"] == "prm" and turn["sampling"]["temperature"] == 0.7
    other = await site.json("/turns/b")
    assert other["drop"] == {"stage": "judge", "reason": "no_hint", "detail": "none said"}
    assert other["spans"] == [{"version": 3, "start": 0, "end": 3}]
    assert [token["teacher"] for token in other["tokens"]] == [None] * 3
    gone = await site.json("/turns/side")
    assert (gone["stage"], gone["reason"], gone["messages"], gone["tokens"]) == ("dropped", "side", [], [])
    assert (await site.get("/turns/none")).status_code == 404


async def test_arrays_of_another_length_are_not_shown(site):
    story = Story()
    entries = story.whole("a")
    longer = record("a")
    site.tell(story.entry("turn", linked("a"), record("a")), *entries[1:])
    site.tell(story.entry("trained", entries[3].message.__class__(turn_id="a", step=9, advantages=longer.prompt_ids)))
    turn = await site.json("/turns/a")
    assert [token["advantage"] for token in turn["tokens"]] == [None] * 3


async def test_halves_of_characters_in_messages_can_be_sent(site):
    story = Story()
    site.tell(story.entry("turn", linked("a"), record("a", said="\ud83d", answer="so \ude00")))
    turn = await site.json("/turns/a")
    assert turn["messages"][-1]["content"] == "\ufffd" and turn["answer"]["content"] == "so \ufffd"


async def test_turns_are_exported_as_they_can_be_run_again(site):
    told(site)
    answer = await site.get("/export")
    lines = answer.text.splitlines(keepends=True)
    turns = [decode_line(line.encode()) for line in lines]
    assert [turn.turn_id for turn in turns] == ["a", "b"]
    assert turns[0].judgement.hint == "Answer in one sentence." and turns[0].sample.teacher_model == "prm"
    assert turns[1].judgement is None
    assert (await site.get("/export?stage=trained")).text == lines[0]


def test_exports_that_nobody_takes_on_hold_up_no_one(store, teller, monkeypatch):
    monkeypatch.setattr("hintloop_console.turn_view.EXPORTED_AT_ONCE", 2)
    story = Story()
    teller.apply([story.entry("turn", linked(name), record(name)) for name in "abcde"])
    stalled = [exported(store, TurnFilter()) for _ in range(NUM_READERS + 1)]
    for lines in stalled:
        next(lines)
    assert store._readers.qsize() == NUM_READERS
    assert [decode_line(line).turn_id for line in stalled[0]] == ["b", "c", "d", "e"]


async def test_wrong_requests_are_told_what_is_wrong(site):
    for path, status, word in (
        ("/turns?limit=0", 422, "limit"),
        (f"/turns?limit={MAX_PAGE + 1}", 422, "limit"),
        ("/turns?after=x", 422, "after"),
        ("/drops?minutes=0", 422, "minutes"),
        ("/advantages?first_step=9223372036854775808", 422, "first_step"),
        ("/nothing", 404, "Not Found"),
    ):
        answer = await site.get(path)
        assert answer.status_code == status and word in answer.json()["error"]["message"]


async def test_a_body_without_end_is_not_read_to_its_end(site):
    num_read = 0

    async def body():
        nonlocal num_read
        for _ in range(1000):
            num_read += 16_384
            yield b" " * 16_384

    for path in ("/session", "/rollback"):
        num_read = 0
        headers = {**FROM_HERE, "content-type": "application/json"}
        answer = await site.client.post(f"/api/v1{path}", content=body(), headers=headers)
        assert answer.status_code == 413 and "65536 bytes" in answer.json()["error"]["message"]
        assert num_read < 200_000


async def test_every_answer_carries_the_headers_that_keep_others_out(site):
    for path in ("/api/v1/me", "/", "/nothing", "/api/v1/turns?limit=0"):
        answer = await site.client.get(path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
    assert (await site.get("/me")).headers["cache-control"] == "no-store"


async def test_another_sites_name_is_not_answered(site):
    answer = await site.get("/me", headers={"host": "evil.example"})
    assert answer.status_code == 400 and "console.allowed_hosts" in answer.json()["error"]["message"]
    assert (await site.get("/me", headers={"host": "localhost:8080"})).status_code == 200


@pytest.mark.parametrize("names", [[], ["c.example"]])
async def test_wherever_it_listens_other_sites_names_are_refused_and_probes_are_not(make_site, names):
    async with make_site(host="0.0.0.0", allowed_hosts=names) as site:
        for path in ("/health", "/metrics"):
            for host in ("10.1.2.3:8080", ""):
                assert (await site.client.get(path, headers={"host": host})).status_code == 200
        assert (await site.get("/me", headers={"host": "c.example"})).status_code == (200 if names else 400)
        assert (await site.get("/me", headers={"host": "evil.example"})).status_code == 400


async def test_signing_in_and_out(site):
    assert (await site.post("/session", {"password": "correct horse"}, headers={})).status_code == 403
    assert (await site.sign_in("wrong horse")).status_code == 401
    answer = await site.sign_in()
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert (await site.json("/me"))["can_write"] is True
    await site.client.delete("/api/v1/session", headers=FROM_HERE)
    assert (await site.json("/me"))["signed_in"] is False


async def test_over_tls_the_cookie_is_for_tls_alone(site):
    answer = await site.post(
        "/session", {"password": "correct horse"}, headers={**FROM_HERE, "x-forwarded-proto": "https"}
    )
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_who_guesses_has_to_wait(site):
    statuses = [(await site.sign_in(f"wrong horse {n}")).status_code for n in range(8)]
    assert statuses == [401] * 5 + [429] * 3
    answer = await site.sign_in()
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1


async def test_writing_needs_a_sign_in_from_this_very_site(site):
    async def asked(headers):
        routes = [("POST", "/rollback"), ("POST", "/resume"), ("POST", "/doctor"), ("GET", "/control/1-1")]
        answers = [
            await site.client.request(method, f"/api/v1{path}", json={"version": 1}, headers=headers)
            for method, path in [*routes, ("DELETE", "/control/1-1")]
        ]
        return {answer.status_code for answer in answers}

    assert await asked(FROM_HERE) == {401}
    await site.sign_in()
    assert await asked({}) == {403}
    assert await asked({**FROM_HERE, "origin": "http://evil.example"}) == {403}
    assert await site.broker.next_control() is None


async def test_a_console_without_a_password_only_shows(make_site):
    async with make_site(password="") as site:
        assert (await site.json("/me"))["password_set"] is False
        assert (await site.post("/rollback", {"version": 1})).status_code == 403
        assert (await site.sign_in("")).status_code == 403
        assert (await site.get("/turns")).status_code == 200


async def test_reading_may_need_a_sign_in_too(make_site):
    async with make_site(read_requires_password=True) as site:
        for path in ("/loop", "/turns", "/turns/a", "/export", "/events", "/doctor", "/alarms"):
            assert (await site.get(path)).status_code == 401, path
        assert (await site.get("/health")).status_code == 200
        assert (await site.client.get("/metrics")).status_code == 401
        await site.sign_in()
        assert (await site.get("/turns")).status_code == 200
        assert (await site.client.get("/metrics")).status_code == 200


async def test_a_rollback_is_a_request_to_the_trainer(site):
    await site.sign_in()
    asked = asyncio.create_task(site.post("/rollback", {"version": 3}))
    while (found := await site.broker.next_control()) is None:
        await asyncio.sleep(0.01)
    request_id, request = found
    assert (request.command, request.version) == (Command.ROLLBACK, 3)
    await site.broker.settle_control(
        request_id, ControlOutcome(state="refused", detail="version 3 is not kept"), pause=None
    )
    answer = await asked
    assert answer.status_code == 202
    assert answer.json() == {
        "request_id": request_id,
        "state": "refused",
        "detail": "version 3 is not kept",
        "version": None,
    }
    assert (await site.client.get(f"/api/v1/control/{request_id}", headers=FROM_HERE)).json() == answer.json()
    assert (await site.post("/rollback", {"version": 0})).status_code == 422


async def test_a_request_that_waits_can_be_taken_back(site, monkeypatch):
    monkeypatch.setattr("hintloop_console.control.FIRST_WORD_S", 0.1)
    await site.sign_in()
    asked = (await site.post("/resume")).json()
    assert asked["state"] == "waiting"
    path = f"/api/v1/control/{asked['request_id']}"
    assert (await site.client.delete(path, headers=FROM_HERE)).json()["state"] == "withdrawn"
    assert await site.broker.next_control() is None
    assert (await site.client.delete(path, headers=FROM_HERE)).status_code == 409


async def test_a_request_that_stands_is_told_though_redis_went_away_behind_it(site, monkeypatch):
    async def away(*_, **__):
        raise DependencyError("redis", "gone")

    await site.sign_in()
    monkeypatch.setattr(site.broker, "control_outcome", away)
    answer = await site.post("/rollback", {"version": 3})
    found = await site.broker.next_control()
    assert found is not None and answer.status_code == 202
    assert (answer.json()["request_id"], answer.json()["state"]) == (found[0], "waiting")


async def test_versions_say_which_serves_and_which_can_be_gone_back_to(site):
    told(site)
    await site.broker.set_weights(WeightsState(8, None))
    await site.broker.set_status("trainer", {"rollback_to": json.dumps({"8": True})})
    await site.get("/loop")
    [row] = (await site.json("/versions"))["rows"]
    assert row["current"] and row["can_go_back"] and row["gate"]["figures"] == {"gate_length": 3.0}


async def test_the_loop_says_when_redis_is_away_and_shows_what_it_saw_last(site, monkeypatch):
    async def away(*_, **__):
        raise DependencyError("redis", "gone")

    assert (await site.json("/loop"))["away"] is None
    monkeypatch.setattr(site.broker, "time_ms", away)
    loop = await site.json("/loop")
    assert loop["away"] == "gone" and loop["funnel"]["captured"] == 0
    assert (await site.client.get("/ready")).status_code == 503
    monkeypatch.setattr(site.broker, "ask_control", away)
    await site.sign_in()
    assert (await site.post("/resume")).status_code == 503


async def test_doctor_is_run_and_its_report_kept(make_site):
    script = "import json, sys; print(json.dumps({'args': sys.argv[1:]})); sys.exit(1)"
    arguments = ["--config", "a.toml", "--set", "x.y=1", "--settings=s.json"]
    async with make_site(arguments, doctor_command=[sys.executable, "-c", script]) as site:
        assert (await site.json("/doctor"))["report"] is None
        await site.sign_in()
        assert (await site.post("/doctor")).json()["running"] is True
        assert (await site.post("/doctor")).status_code == 409
        state = await settled(site)
        assert state["report"] == {"args": arguments} and state["exit_code"] == 1
        assert state["error"] is None and state["ended_ms"] >= state["started_ms"]
    async with make_site(doctor_command=[]) as site:
        state = await site.json("/doctor")
        assert state["report"] is not None and state["available"] is False, "kept over a restart"
        await site.sign_in()
        assert (await site.post("/doctor")).status_code == 404


@pytest.mark.parametrize(
    ("command", "timeout_s", "said"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such thing')"], 60, "no such thing"),
        (["/no/such/program"], 60, "cannot be started"),
        ([sys.executable, "-c", "print('x' * 9_000_000)"], 60, "longer than"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 1, "was not done within"),
        (["true"], 60, "said nothing"),
    ],
)
async def test_a_doctor_that_gives_no_report_says_why(make_site, command, timeout_s, said):
    async with make_site(doctor_command=command, doctor_timeout_s=timeout_s) as site:
        await site.sign_in()
        await site.post("/doctor")
        state = await settled(site)
        assert state["report"] is None and said in state["error"]


async def settled(site):
    for _ in range(3600):
        state = await site.json("/doctor")
        if not state["running"]:
            return state
        await asyncio.sleep(0.05)
    raise AssertionError("doctor did not end")


async def test_metrics_of_console_loop_and_alarms_are_scraped(site):
    await site.get("/loop")
    text = (await site.client.get("/metrics")).text
    for name in (
        "hintloop_console_history_entries_total",
        "hintloop_stream_lag",
        "hintloop_alarm",
        "hintloop_funnel_total",
    ):
        assert name in text
