"""What a wire does to an engine's answers is what its fault says, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.faults import scores
from tests.faults.background import Background
from tests.faults.wire import Asked, Change, Reply, Wire, answering, refusing, rewriting
from tests.scripted.scoring_engine import WireEngine

IDS = [5, 9, 17, 33, 65, 12]
#: A hint's header, its words and the token that ends the message, before the answer.
HEADER, WORDS, END = [90, 91], [70, 71, 72], 1
HINTED = [5, 9, *HEADER, *WORDS, END, 33, 65, 12]


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as running:
        yield running


@pytest.fixture
def wire(background: Background) -> Iterator[Wire]:
    engine = WireEngine("vllm", max_top_k=64)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.handle)
    url, runner = background.serve(app)
    with Wire(background, url) as between:
        yield between
    background.end(runner)


def entries(wire: Wire, ids: list[int], top_k: int = 0) -> list[Any]:
    body = {"model": "teacher", "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": top_k}
    answered = httpx.post(f"{wire.url}/v1/completions", json=body).raise_for_status().json()["choices"][0]
    assert answered["prompt_token_ids"] == ids
    found: list[Any] = answered["prompt_logprobs"]
    return found


def own(wire: Wire, ids: list[int]) -> list[float | None]:
    return [entry and entry[str(token)]["logprob"] for entry, token in zip(entries(wire, ids), ids, strict=True)]


def test_without_a_change_all_is_as_it_was(wire: Wire) -> None:
    direct = httpx.get(f"{wire.target}/v1/models")
    passed = httpx.get(f"{wire.url}/v1/models")
    assert (passed.status_code, passed.content) == (direct.status_code, direct.content)
    assert httpx.get(f"{wire.url}/nowhere").status_code == 404
    assert wire.seen["/v1/models"] == 1


def test_a_change_ends_with_its_fault(wire: Wire) -> None:
    with wire.changed(answering("/v1/models", {"data": []})):
        assert httpx.get(f"{wire.url}/v1/models").json() == {"data": []}
    assert httpx.get(f"{wire.url}/v1/models").json()["data"]


def test_changes_act_in_order(wire: Wire) -> None:
    def add(name: str) -> Change:
        return rewriting("/v1/models", lambda asked, body: {"names": [*body.get("names", []), name]})

    with wire.changed(add("near"), add("far")):
        assert httpx.get(f"{wire.url}/v1/models").json() == {"names": ["far", "near"]}


def test_a_changed_request_is_what_the_engine_gets(wire: Wire) -> None:
    async def before(asked: Asked) -> Asked | Reply | None:
        return (
            None if asked.body is None else Asked(asked.method, asked.path, asked.query, {**asked.body, "prompt": "b"})
        )

    with wire.changed(Change(before=before)):
        answered = httpx.post(f"{wire.url}/tokenize", json={"model": "teacher", "prompt": "a"})
    assert answered.json() == {"tokens": [ord("b")]}


@pytest.mark.parametrize("by", [1, -1])
def test_shifted_scores_keep_their_ids(wire: Wire, by: int) -> None:
    right = own(wire, IDS)
    with wire.changed(scores.shifted(by)):
        wrong = own(wire, IDS)
    inner = range(2, len(IDS) - 1)
    assert [wrong[place] for place in inner] == [right[place + by] for place in inner]
    assert wrong[0] is None


def test_missing_and_refused_scores(wire: Wire) -> None:
    with wire.changed(scores.missing()):
        assert entries(wire, IDS) is None
    with wire.changed(scores.refused()), pytest.raises(httpx.HTTPStatusError, match="400"):
        entries(wire, IDS)
    with wire.changed(scores.limited(20)):
        assert len(entries(wire, IDS, 20)) == len(IDS)
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            entries(wire, IDS, 21)


def test_another_temperature_is_a_distribution_too(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "VOCABULARY", 128)
    plain = entries(wire, IDS, 64)
    with wire.changed(scores.tempered(0.6)):
        sharp = entries(wire, IDS, 64)
    for before, after in zip(plain[1:], sharp[1:], strict=True):
        assert before.keys() == after.keys()
        assert math.fsum(math.exp(item["logprob"]) for item in after.values()) < 1 + 1e-9
        likely = max(before, key=lambda key: before[key]["logprob"])
        assert after[likely]["logprob"] > before[likely]["logprob"]


def test_a_hint_that_is_not_seen_changes_no_score(wire: Wire) -> None:
    unhinted = own(wire, [5, 9, END, 33, 65, 12])
    with wire.changed(scores.without_hint(HEADER, END)):
        assert own(wire, HINTED)[-4:] == unhinted[-4:]
        assert own(wire, IDS) == own(wire, IDS)
    assert own(wire, HINTED)[-4] != unhinted[-4]


def test_a_hint_of_filler_keeps_the_number_of_tokens(wire: Wire) -> None:
    with wire.changed(scores.with_filler(HEADER, END, 40)):
        deaf = own(wire, HINTED)
    filled = own(wire, [5, 9, *HEADER, 40, 40, 40, END, 33, 65, 12])
    assert deaf[-4:] == filled[-4:]
    assert len(deaf) == len(HINTED)


def test_a_cut_context_is_not_told(wire: Wire) -> None:
    with wire.changed(scores.context_of(3)):
        cut = own(wire, IDS)
    assert cut[-2:] == own(wire, IDS[-3:])[-2:]
    assert cut[0] is None
    assert None not in cut[1:]


def test_errors_read_like_a_servers(wire: Wire) -> None:
    with wire.changed(refusing("/v1/models", 503, "starting")):
        answered = httpx.get(f"{wire.url}/v1/models")
    assert answered.status_code == 503
    assert answered.json()["error"]["message"] == "starting"
