"""What the probe finds of each kind of engine, over HTTP, and why it refuses what cannot teach."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import DependencyError
from hintloop_teacher.engine import TeacherEngine
from hintloop_teacher.errors import (
    MisalignedError,
    MissingError,
    ProbeError,
    ProbeReason,
    TooLongError,
    UnsupportedError,
)
from hintloop_teacher.http import EngineClient, Patience
from hintloop_teacher.probe import ProbeReport, probe
from hintloop_teacher.scoring import ForcedScorer

from tests.scripted.scoring_engine import SIZE, WireEngine, chat_ids, logprobs_after, score_of, served


class Vocabulary:
    """Code points below SIZE."""

    size = num_ids = SIZE
    fingerprint = "0123456789abcdef"
    probes = ("Hello, world", "<a><b>")
    tokenizer: Any = None

    def encode(self, text: str) -> list[int]:
        return [ord(char) % SIZE for char in text]

    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))


def client_of(engine: WireEngine) -> EngineClient:
    patience = Patience(timeout_s=5.0, wait_s=0.001, circuit_failures=1000)
    return EngineClient(engine.url, dependency="prm-engine", patience=patience)


@asynccontextmanager
async def probed(engine: WireEngine, top_k: int = 4, **prm: Any) -> AsyncIterator[tuple[ForcedScorer, ProbeReport]]:
    async with served(engine):
        client = client_of(engine)
        try:
            section = Config.model_validate({"prm": prm}).prm
            yield await probe(client, section, Vocabulary(), top_k)  # type: ignore[arg-type]
        finally:
            await client.close()


IDS = [3, 9, 27, 14, 5, 33, 8]


@pytest.mark.parametrize(
    ("kind", "flaws", "dialect"),
    [
        ("vllm", set(), "vllm"),
        ("vllm", {"open"}, "vllm"),
        ("sglang", set(), "sglang"),
        ("completions", set(), "openai"),
        ("completions", {"at least one token"}, "openai"),
        ("completions", {"knows no ids", "ids beside"}, "openai"),
        ("completions", {"knows no ids", "ids beside", "at least one token"}, "openai"),
        ("vllm", {"follows temperature"}, "vllm"),
    ],
)
async def test_every_kind_gives_the_same_numbers(kind: str, flaws: set[str], dialect: str) -> None:
    top_k = 0 if "ids beside" in flaws else 4
    async with probed(WireEngine(kind, flaws=flaws), top_k) as (scorer, report):
        assert report.dialect == dialect
        scores = await scorer.score(IDS[:2], IDS[2:], top_k)
        expected = [score_of(before, token) for before, token in itertools.pairwise(IDS[1:])]
        assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-6)
        limits = report.limits
        assert limits is not None
        assert limits.max_top_k == (0 if "ids beside" in flaws else 20)
        assert limits.first_entry == "null"
        assert ("follow" in limits.temperature) is ("follows temperature" in flaws)
        if top_k:
            assert scores.topk_ids is not None
            best = [np.argsort(-logprobs_after(before))[:4].tolist() for before in IDS[1:-1]]
            assert scores.topk_ids.tolist() == best


@pytest.mark.parametrize(("kind", "flaws"), [("sglang", set()), ("vllm", {"open"})])
async def test_given_candidates(kind: str, flaws: set[str]) -> None:
    async with probed(WireEngine(kind, flaws=flaws)) as (scorer, report):
        assert report.limits is not None and not report.limits.given_candidates.startswith("refused")
        rows = [[7, 1, 30], [2, 39, 4], [9, 8, 5], [0, 1, 2], [11, 12, 13]]
        scores = await scorer.score(IDS[:2], IDS[2:], candidate_ids=rows)
        assert scores.topk_ids is not None and scores.topk_logprobs is not None and scores.tail_logprobs is not None
        assert scores.topk_ids.tolist() == rows
        for before, row, values, tail in zip(IDS[1:-1], rows, scores.topk_logprobs, scores.tail_logprobs, strict=True):
            truth = logprobs_after(before)
            assert values.tolist() == pytest.approx([truth[token] for token in row], abs=1e-6)
            assert tail == pytest.approx(np.log(1 - np.exp(truth[row]).sum()), abs=1e-5)
        for wrong, words in (
            (rows[:-1], "4 rows"),
            ([*rows[:-1], [1, 2]], "rows of candidate_ids"),
            ([*rows[:-1], [1, 1, 2]], "twice"),
            ([*rows[:-1], [1, 2, SIZE]], f"{SIZE}, outside the vocabulary"),
        ):
            with pytest.raises(MisalignedError, match=words):
                await scorer.score(IDS[:2], IDS[2:], candidate_ids=wrong)


@pytest.mark.parametrize(
    ("kind", "flaws", "words"),
    [
        ("vllm", set(), "--enable-scale-out"),
        ("vllm", {"open", "candidates of another place"}, "scores otherwise as a given candidate"),
        ("completions", set(), "scores no given candidates"),
    ],
)
async def test_given_candidates_are_refused_where_they_cannot_be_scored(kind: str, flaws: set[str], words: str) -> None:
    async with probed(WireEngine(kind, flaws=flaws)) as (scorer, report):
        assert report.limits is not None and report.limits.given_candidates.startswith("refused: ")
        with pytest.raises(UnsupportedError, match=words):
            await scorer.score(IDS[:2], IDS[2:], candidate_ids=[[1, 2]] * 5)


async def test_spans_of_candidates_keep_the_list_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hintloop_teacher.dialects.sglang.MAX_LISTED_IDS", 6)
    engine = WireEngine("sglang")
    async with probed(engine) as (scorer, _):
        engine.bodies.clear()
        rows = [[7, 1, 30], [2, 39, 4], [9, 8, 5], [9, 8, 6], [11, 12, 13]]
        await scorer.score(IDS[:2], IDS[2:], candidate_ids=rows)
    listed = [body["token_ids_logprob"] for body in engine.bodies if "token_ids_logprob" in body]
    assert sorted(map(len, listed)) == [3, 4, 6]


async def test_long_answers_are_scored_in_chunks_that_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [(7 * i + 3) % SIZE for i in range(60)]
    results = []
    for size in (1, 7, 1000):
        engine = WireEngine("sglang")
        async with probed(engine, score_chunk_tokens=size) as (scorer, _):
            engine.bodies.clear()
            scores = await scorer.score(ids[:10], ids[10:], 3)
            assert scores.topk_ids is not None and scores.tail_logprobs is not None
            results.append((scores.logprobs.tolist(), scores.topk_ids.tolist(), scores.tail_logprobs.tolist()))
        lengths = [len(body["input_ids"]) for body in engine.bodies]
        # Each with the whole prefix before it, in order, so that it is found in the cache.
        assert lengths == [*range(10 + size, 60, size), 60]
        assert all(body["input_ids"] == ids[: len(body["input_ids"])] for body in engine.bodies)
    assert results[0] == results[1] == results[2]


async def test_engines_that_cannot_begin_late_are_asked_once() -> None:
    engine = WireEngine("vllm")
    async with probed(engine, score_chunk_tokens=2) as (scorer, report):
        engine.bodies.clear()
        await scorer.score(IDS[:2], IDS[2:])
        assert len(engine.bodies) == 1
        assert report.limits is not None and "one request" in report.limits.chunks


@pytest.mark.parametrize("kind", ["vllm", "sglang", "completions"])
@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("no logprobs", "cannot score given tokens"),
        ("holes", "is null"),
        ("not a number", "nan"),
        ("short", "tokens|entries|scored"),
        ("shifted", "shifted"),
    ],
)
async def test_what_is_wrong_is_refused_with_the_reason(kind: str, flaw: str, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        async with probed(WireEngine(kind, flaws={flaw})):
            pass
    assert caught.value.reason is (ProbeReason.SHIFTED if flaw == "shifted" else ProbeReason.NO_SCORES)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_another_tokenizer_is_refused(kind: str) -> None:
    with pytest.raises(ProbeError, match="encodes 'Hello, world'… otherwise") as caught:
        async with probed(WireEngine(kind, flaws={"other tokenizer"})):
            pass
    assert caught.value.reason is ProbeReason.VOCABULARY


async def test_too_many_candidates() -> None:
    with pytest.raises(ProbeError, match=r"refuses 21 candidates.*topk_opd\.top_k") as caught:
        async with probed(WireEngine("vllm"), 21):
            pass
    assert caught.value.reason is ProbeReason.TOP_K
    async with probed(WireEngine("vllm", max_top_k=0), 0) as (_, report):
        assert report.limits is not None and report.limits.max_top_k == 0


async def test_an_engine_that_breaks_at_too_many_candidates_is_told_from_one_that_is_away() -> None:
    async with probed(WireEngine("sglang", flaws={"breaks at too many"}), 4) as (_, report):
        assert report.limits is not None and report.limits.max_top_k == 20
    with pytest.raises(ProbeError, match=r"fails when 21 candidates.*answered 500.*lower topk_opd\.top_k"):
        async with probed(WireEngine("sglang", flaws={"breaks at too many"}), 21):
            pass
    with pytest.raises(DependencyError, match="answered 503"):
        async with probed(WireEngine("sglang", status=503), 21):
            pass


async def test_an_api_that_covers_its_own_token_alone_is_no_teacher() -> None:
    flaws = {"covers the generated token"}
    for extra in (set(), {"at least one token"}):
        with pytest.raises(ProbeError, match=r"cover 1 token\(s\), those it generated itself"):
            async with probed(WireEngine("completions", flaws=flaws | extra)):
                pass


@pytest.mark.parametrize(
    ("flaws", "words"),
    [
        (set(), "Asked to echo, it gave 1 log-probabilities"),
        ({"knows no echo"}, "Unrecognized request argument: echo"),
        ({"echoes", "names no ids"}, "names no token ids"),
        ({"echoes", "shifted"}, "shifted"),
    ],
)
async def test_a_chat_api_cannot_teach_and_is_told_so(flaws: set[str], words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        async with probed(WireEngine("chat", flaws=flaws)):
            pass
    if "shifted" not in flaws:
        assert "It can judge, but not teach" in str(caught.value) and "prm.teacher_url" in str(caught.value)


async def test_a_chat_api_that_echoes_ids_scores_conversations() -> None:
    messages = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "say"}]
    ids = chat_ids(messages)
    async with probed(WireEngine("chat", flaws={"echoes"}), 0) as (scorer, report):
        assert report.dialect == "chat" and report.limits is None
        scores = await scorer.score(ids[:5], ids[5:], 3, messages=messages)
        expected = [score_of(before, token) for before, token in itertools.pairwise(ids[4:])]
        assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-6)
        assert scores.topk_ids is not None and scores.topk_ids.shape == (len(ids) - 5, 3)
        with pytest.raises(MisalignedError, match="differ first at position 1"):
            await scorer.score([ids[0], 0, *ids[2:5]], ids[5:], messages=messages)
        with pytest.raises(UnsupportedError, match="not token ids"):
            await scorer.score(ids[:5], ids[5:])


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_the_wanted_model_must_be_served(kind: str) -> None:
    with pytest.raises(ProbeError, match=r"prm\.teacher_model 'other' is not served.*served are teacher") as caught:
        async with probed(WireEngine(kind), teacher_model="other"):
            pass
    assert caught.value.reason is ProbeReason.MODEL
    async with probed(WireEngine(kind), teacher_model="teacher") as (_, report):
        assert report.model == "teacher"


@pytest.mark.parametrize("flaws", [set(), {"no limit"}])
async def test_too_long_is_too_long_whether_the_limit_is_told_or_not(flaws: set[str]) -> None:
    engine = WireEngine("vllm", context=64, flaws=flaws)
    async with probed(engine) as (scorer, report):
        assert report.max_input_len == (None if flaws else 63)
        engine.bodies.clear()
        with pytest.raises(TooLongError):
            await scorer.score([1] * 60, [2] * 5)
        assert bool(engine.bodies) is bool(flaws)


async def test_an_engine_that_comes_back_as_another_is_not_taught_by() -> None:
    engine = WireEngine("vllm")
    async with served(engine):
        section = Config.model_validate({}).prm
        teacher = TeacherEngine(client_of(engine), section, Vocabulary(), 4)  # type: ignore[arg-type]
        with pytest.raises(DependencyError, match="not probed yet"):
            assert teacher.scorer
        await teacher.prepare()
        assert await teacher.ready()
        engine.status = 503
        assert not await teacher.ready()
        engine.status = 200
        engine.flaws = {"other tokenizer"}
        assert not await teacher.ready()
        assert teacher.problem is not None and "otherwise than the student's" in str(teacher.problem)
        assert teacher.problem.reason is ProbeReason.VOCABULARY
        engine.flaws = set()
        assert await teacher.ready()
        assert teacher.problem is None
        await teacher.close()


async def test_those_who_ask_together_probe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(WireEngine("vllm")) as engine:
        client, section = client_of(engine), Config.model_validate({"prm": {}}).prm
        teacher = TeacherEngine(client, section, Vocabulary(), 4)  # type: ignore[arg-type]
        await asyncio.gather(*(teacher.prepared() for _ in range(5)))
        once = len(engine.paths)
        monkeypatch.setattr("hintloop_teacher.engine.LOOK_AGAIN_S", 0.5)
        teacher._probed = -1000.0
        await asyncio.gather(*(teacher.check_again("a null") for _ in range(5)))
        assert len(engine.paths) == 2 * once
        await client.close()


async def test_a_turns_trouble_is_told_from_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = WireEngine("vllm")
    async with served(engine):
        section = Config.model_validate({}).prm
        teacher = TeacherEngine(client_of(engine), section, Vocabulary(), 4)  # type: ignore[arg-type]
        await teacher.prepare()
        asked = len(engine.bodies)
        await teacher.check_again("a null")
        assert len(engine.bodies) == asked, "it was looked at a moment ago"
        monkeypatch.setattr("hintloop_teacher.engine.LOOK_AGAIN_S", 0.0)
        await teacher.check_again("a null")
        assert len(engine.bodies) > asked
        engine.flaws = {"no logprobs"}
        with pytest.raises(MissingError):
            await teacher.scorer.score(IDS[:2], IDS[2:])
        with pytest.raises(DependencyError, match="a null; probed again: .*cannot score given tokens"):
            await teacher.check_again("a null")
        await teacher.close()
