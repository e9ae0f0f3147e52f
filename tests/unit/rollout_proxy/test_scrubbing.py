"""Scrubbing: what is found, what is left alone, and what may be stored of a turn in which something was masked."""

from __future__ import annotations

import asyncio
import json
import random
import string
import threading
import time
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from hintloop_contract.api_keys import new_key
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Capture
from hintloop_contract.tensors import pack
from hintloop_rollout_proxy.scrubbing import Scrubber, make_scrubber

EMAIL = "jane.doe+x@mail.example.org"
# Assembled, so that no scanner takes this file for a leak.
GITHUB = "ghp_" + "a1B2" * 9
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
JWT = ".".join(["eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxMjM0NTY3ODkwIn0", "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"])
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\nAQEA7\n-----END RSA PRIVATE KEY-----"


@lru_cache
def scrubber_of(mode: str, *, train: bool = False) -> Scrubber:
    config = Config.model_validate({"proxy": {"scrub": mode, "train_scrubbed": train}})
    scrubber = make_scrubber(config.proxy)
    assert scrubber is not None
    return scrubber


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"use {GITHUB} here", GITHUB),
        (f"id {AWS}, please", AWS),
        (f"curl -H 'Authorization: Bearer {JWT}'", JWT),
        ("Authorization: Bearer abcdefghijklmnop1234", "abcdefghijklmnop1234"),
        (f"here it is:\n{PEM}\nok?", "MIIEpAIBAAKC"),
        ("cut -----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKC", "MIIEpAIBAAKC"),
        ("git clone https://bob:hunter2pass@example.com/x.git", "hunter2pass"),
        ('password = "hunter2!x"', "hunter2!x"),
        ("export DB_PASSWORD=s3cr3tval99 && run", "s3cr3tval99"),
        ("sk-ant-" + "api03-Abc123" * 4, "Abc123"),
        ("sk-proj-" + "Abc123xyz_-" * 4, "Abc123xyz"),
        ("hf_" + "AbCdEfGh12" * 4, "AbCdEfGh12"),
        (f"key: {new_key()}", "hl-"),
        ("x" * 8190 + " " + GITHUB + " " + "y" * 9000, GITHUB),
    ],
)
def test_secrets_are_masked_whole(text: str, secret: str) -> None:
    masked = scrubber_of("secrets").text(text)
    assert "[secret]" in masked
    assert secret not in masked
    for start in range(0, len(secret) - 11):
        assert secret[start : start + 12] not in masked


@pytest.mark.parametrize(
    ("text", "data", "word"),
    [
        (f"mail {EMAIL}.", EMAIL, "email"),
        ("ring +49 30 901820 now", "901820", "phone"),
        ("ring (415) 555-2671 now", "555-2671", "phone"),
        ("card 4111 1111 1111 1111.", "1111 1111", "card"),
        ("card 378282246310005 amex", "378282246310005", "card"),
        ("DE89 3704 0044 0532 0130 00 is mine", "3704 0044", "iban"),
        ("ssn 536-90-4399", "536-90-4399", "ssn"),
        ("from 8.8.4.4 came", "8.8.4.4", "ip"),
    ],
)
def test_personal_data_is_masked(text: str, data: str, word: str) -> None:
    masked = scrubber_of("personal").text(text)
    assert f"[{word}]" in masked
    assert data not in masked


ORDINARY = (
    "def total(xs): return sum(x * 1.25 for x in xs)  # 2026-11-29 10:00:00, v1.2.3.4-rc1",
    "The key to success: pass the token count (max_tokens=256) and a secret smile.",
    "export API_KEY=$OTHER_KEY; TOKEN=<your token>; PASSWORD=${PW}",
    "listening on 127.0.0.1:8080 and 10.0.0.7, pid 1234567, 1732900000000 ms, 4111111111111112",
    "commit 9929d95c1f0e2b7a6d5e4c3b2a1f0e9d8c7b6a5f; uuid 01930000-1111-7222-8333-444455556666",
    "https://example.com/path?token_type=x @decorator user@localhost 3/4 1/2 100-200 12:30-13:45",
    "class ApiKeyEntry(Section): hash: SecretStr  # the key's hash",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert scrubber_of("both").text(text) == text


def test_each_kind_alone() -> None:
    text = f"{EMAIL} {GITHUB}"
    assert scrubber_of("secrets").text(text) == f"{EMAIL} [secret]"
    assert scrubber_of("personal").text(text) == f"[email] {GITHUB}"
    assert scrubber_of("both").text(text) == "[email] [secret]"
    assert make_scrubber(Config().proxy) is None


def test_phone_regions_are_a_choice() -> None:
    german = "Telefon 030 901820"
    config = Config.model_validate({"proxy": {"scrub": "personal", "scrub_phone_regions": ["DE"]}})
    scrubber = make_scrubber(config.proxy)
    assert scrubber is not None
    assert scrubber.text(german) == "Telefon [phone]"
    assert scrubber_of("personal").text(german) == german


def test_a_region_that_is_none_is_refused_and_not_searched_in_vain() -> None:
    config = Config.model_validate({"proxy": {"scrub": "personal", "scrub_phone_regions": ["US", "UK"]}})
    with pytest.raises(ConfigError, match=r"scrub_phone_regions: 'UK' is no .*'GB'"):
        make_scrubber(config.proxy)


def captured(content: str, **changes: Any) -> Capture:
    request = {"messages": [{"role": "user", "content": content}], "temperature": 0.5, "n": 1}
    values: dict[str, Any] = {
        "turn_id": "t",
        "engine": "vllm",
        "engine_url": "u",
        "request": msgspec.json.encode(request),
        "answer": b'{"role":"assistant","content":"ok"}',
        "prompt_ids": pack([1, 2], "int32"),
        "response_ids": pack([3], "int32"),
        "logprobs": pack([-0.5], "float32"),
        "start_ms": 1,
        "end_ms": 2,
        **changes,
    }
    return Capture(**values)


def test_a_clean_capture_stays_the_very_same() -> None:
    capture = captured("What is rain?", session_key="header:x-session-id:s1")
    assert scrubber_of("both").capture(capture) is capture


def test_a_masked_capture_keeps_no_ids_and_says_why() -> None:
    scrubbed = scrubber_of("both").capture(captured(f"I am {EMAIL}"))
    assert json.loads(scrubbed.request)["messages"][0]["content"] == "I am [email]"
    assert json.loads(scrubbed.request)["temperature"] == 0.5
    assert (scrubbed.prompt_ids, scrubbed.response_ids, scrubbed.logprobs) == (None, None, None)
    assert scrubbed.problem == "scrubbed"
    other = scrubber_of("both").capture(captured(f"I am {EMAIL}", problem="aborted", problem_detail=f"said {EMAIL}"))
    assert (other.problem, other.problem_detail, other.prompt_ids) == ("aborted", "said [email]", None)


def test_trained_all_the_same_when_told_so() -> None:
    capture = captured(f"I am {EMAIL}")
    scrubbed = scrubber_of("both", train=True).capture(capture)
    assert EMAIL.encode() not in scrubbed.request
    assert (scrubbed.problem, scrubbed.response_ids) == (None, capture.response_ids)


def test_every_member_that_may_hold_text_is_masked() -> None:
    tool = {"name": "login", "arguments": json.dumps({"password": "hunter2!x"})}
    request = {
        "system": [{"type": "text", "text": f"mail {EMAIL}"}],
        "messages": [
            {"role": "assistant", "tool_calls": [{"id": "1", "function": tool}]},
            {"role": "assistant", "content": [{"type": "tool_use", "input": {"password": "correcthorse", "n": 3}}]},
        ],
        "tools": [{"function": {"parameters": {"properties": {"password": {"type": "string"}}}}}],
        EMAIL: 1,
    }
    capture = captured(
        "",
        request=msgspec.json.encode(request),
        chat_request=msgspec.json.encode({"messages": [EMAIL]}),
        answer=msgspec.json.encode({"role": "assistant", "content": None, "reasoning": GITHUB}),
        session_key=f"body:user:{EMAIL}",
        identity={"x-agent": EMAIL, "x-other": "plain"},
    )
    scrubbed = scrubber_of("both").capture(capture)
    stored = msgspec.msgpack.encode(scrubbed)
    for text in (EMAIL, GITHUB, "hunter2", "correcthorse"):
        assert text.encode() not in stored
    assert json.loads(scrubbed.request)["tools"] == request["tools"]
    assert scrubbed.identity["x-other"] == "plain"
    other = scrubber_of("both").capture(captured("", session_key=f"body:user:x{EMAIL}"))
    assert scrubbed.session_key is not None and other.session_key is not None
    assert scrubbed.session_key.startswith("body:user:scrubbed-")
    assert scrubbed.session_key != other.session_key


def test_requests_that_are_no_json_are_masked_too() -> None:
    scrubbed = scrubber_of("both").capture(captured("", request=b'{"broken": "' + EMAIL.encode() + b"\xff"))
    assert EMAIL.encode() not in scrubbed.request


def test_the_echo_of_an_answer_is_masked_like_the_answer() -> None:
    # The linker finds an answer by its echo: masking must not depend on what surrounds a text.
    words = f"Mail {EMAIL} or {GITHUB}."
    answer = scrubber_of("both").capture(captured("hi", answer=msgspec.json.encode({"content": words}))).answer
    assert answer is not None
    echo = json.loads(scrubber_of("both").capture(captured(words)).request)["messages"][0]["content"]
    assert json.loads(answer)["content"] == echo


def test_long_texts_cost_milliseconds_at_a_time() -> None:
    scrubber = make_scrubber(Config.model_validate({"proxy": {"scrub": "both"}}).proxy)
    assert scrubber is not None
    source = random.Random(0)
    text = "".join(source.choices(string.ascii_letters + string.digits + " =:./-\n", k=200_000))
    started = time.process_time()
    scrubber.text(text)
    assert time.process_time() - started < 5
    started = time.process_time()
    scrubber.text(text)
    assert time.process_time() - started < 0.05


async def test_nothing_sensitive_reaches_the_stream_and_the_agent_notices_nothing(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    threads: list[str] = []
    ask = {"messages": [{"role": "user", "content": f"I am {EMAIL}"}]}
    async with proxy(proxy={"scrub": "both"}) as running:
        stage = running.deps.scrubbing
        scrub = stage._scrubber.capture

        def watched(capture: Capture) -> Capture:
            threads.append(threading.current_thread().name)
            result: Capture = scrub(capture)
            return result

        stage._scrubber.capture = watched
        status, data = await running.ask(ask)
        await running.ask({"messages": [{"role": "user", "content": "What is rain?"}]})
        masked, clean = await running.captures(2)
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert status == 200
    assert fake_engine.seen[0][1]["messages"] == ask["messages"]
    assert EMAIL.encode() not in msgspec.msgpack.encode(masked)
    assert (masked.problem, masked.response_id) == ("scrubbed", json.loads(data)["id"])
    assert (clean.problem, clean.prompt_ids is None) == (None, False)
    assert "MainThread" not in threads and len(threads) == 2
    assert "hintloop_proxy_scrubbed_total 1.0" in metrics


async def test_what_cannot_be_scrubbed_is_never_stored(fake_engine: Any, proxy: Any) -> None:
    fake_engine.replay("chat_stop")
    async with proxy(proxy={"scrub": "both"}) as running:
        scrub = running.deps.scrubbing._scrubber.capture
        failures = iter([True])

        def failing(capture: Capture) -> Capture:
            if next(failures, False):
                raise RuntimeError("a bug")
            result: Capture = scrub(capture)
            return result

        running.deps.scrubbing._scrubber.capture = failing
        await running.ask({"messages": [{"role": "user", "content": EMAIL}]})
        await running.ask({"messages": [{"role": "user", "content": "fine"}]})
        (kept,) = await running.captures(1)
        assert len(running.deps.flight) == 0
        metrics = await (await running.session.get(running.url + "/metrics")).text()
    assert b"fine" in kept.request
    assert 'hintloop_proxy_lost_total{cause="unscrubbable"} 1.0' in metrics


async def test_what_waits_at_the_end_is_scrubbed_and_written(fake_engine: Any, proxy: Any, tmp_path: Any) -> None:
    from hintloop_contract.streams import CAPTURES
    from hintloop_contract.testing.memory import MemoryBroker

    fake_engine.replay("chat_stop")
    broker = MemoryBroker()
    async with proxy(broker, proxy={"scrub": "both"}) as running:
        scrub = running.deps.scrubbing._scrubber.capture

        def slow(capture: Capture) -> Capture:
            time.sleep(0.05)
            result: Capture = scrub(capture)
            return result

        running.deps.scrubbing._scrubber.capture = slow
        ask = {"messages": [{"role": "user", "content": EMAIL}]}
        await asyncio.gather(*(running.ask(ask) for _ in range(4)))
    entries = await broker.read(CAPTURES, "test", 100, 50)
    assert [entry.message.problem for entry in entries] == ["scrubbed"] * 4
    await broker.close()


@pytest.mark.parametrize(("mode", "stored"), [("off", True), ("both", False)])
async def test_answers_to_refer_to_stay_here_when_scrubbing(
    mode: str, stored: bool, fake_engine: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hintloop_contract.testing.memory import MemoryBroker

    fake_engine.replay("chat_stop")
    kept: list[bytes] = []
    keep = MemoryBroker.keep

    async def watched(self: MemoryBroker, kind: str, name: str, value: bytes, **more: Any) -> None:
        kept.append(value)
        await keep(self, kind, name, value, **more)

    monkeypatch.setattr(MemoryBroker, "keep", watched)
    async with proxy(proxy={"scrub": mode}) as running:
        url = running.url + "/v1/responses"
        async with running.session.post(url, json={"model": "policy", "input": f"I am {EMAIL}"}) as response:
            first = await response.json()
        follow_up = {"model": "policy", "input": "And?", "previous_response_id": first["id"]}
        async with running.session.post(url, json=follow_up) as response:
            assert response.status == 200
    assert bool(kept) is stored
    assert EMAIL in json.dumps(fake_engine.seen[1][1])
