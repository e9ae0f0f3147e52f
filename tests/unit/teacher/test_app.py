import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.problems import ProblemReply
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher import routes
from hintloop_teacher.app import make_app
from hintloop_teacher.bodies import ForcedBody, ForcedReply
from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.probe import ProbeReport
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import read_vocabulary, same_tokenizer
from hintloop_teacher.wiring import build_deps
from httpx import ASGITransport, AsyncClient
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from .fake_dialect import FakeDialect, score_of


def save_model(folder: Path, *, padded: int = 16, special: str = "<|end|>") -> str:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.add_special_tokens([AddedToken(special, special=True)])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": padded}), encoding="utf-8")
    return str(folder)


def test_the_vocabulary_is_what_the_tokenizer_can_say(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m")
    vocabulary = read_vocabulary(path, path)
    assert vocabulary.size == 4
    assert vocabulary.special_text == "<|end|>"
    other = read_vocabulary(*[save_model(tmp_path / "o", special="<|stop|>")] * 2)
    assert same_tokenizer(vocabulary.tokenizer, read_vocabulary(path, path).tokenizer)
    assert not same_tokenizer(vocabulary.tokenizer, other.tokenizer)


def test_tokenizers_that_differ_in_two_frequent_tokens_alone_differ_on_a_probe(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(6000)]
    swapped = [*words[:2000], words[2001], words[2000], *words[2002:]]
    found = []
    for name, tokens in (("one", words), ("other", swapped)):
        path = save_model(tmp_path / name, padded=8192)
        tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(tokens)}, unk_token="w0"))
        tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
        tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
        tokenizer.save(f"{path}/tokenizer.json")
        found.append(read_vocabulary(path, path))
    one, other = found
    assert [text for text in one.probes if one.encode(text) != other.encode(text)]
    assert max(len(one.encode(text)) for text in one.probes) <= 1024
    assert sum(len(one.encode(text)) for text in one.probes[2:]) < 4096 + 2 * 256


def test_control_tokens_are_special_or_markup(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m")
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("    ", special=False), AddedToken("okay")])
    tokenizer.save(f"{path}/tokenizer.json")
    assert set(read_vocabulary(path, path).control_tokens.values()) == {"<|end|>", "<tool>"}


async def test_a_hint_format_with_a_control_token_is_refused(tmp_path: Path) -> None:
    broker = MemoryBroker()
    settings = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "opd": {"hint_format": "<|end|>\n{hint}"},
    }
    with pytest.raises(ConfigError, match=r"opd\.hint_format.*<\|end\|>"):
        await build_deps(Config.model_validate(settings), broker)
    await broker.close()


@pytest.mark.parametrize(("model", "words"), [("", "student_model_path is empty"), ("/nowhere", "config.json")])
def test_a_student_that_cannot_be_read(model: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_vocabulary(model, model)


BROKEN: list[tuple[dict[str, Any], str | None]] = [
    ({"response_ids": []}, "response_ids"),
    ({"prompt_ids": [0, -1]}, "prompt_ids[1]"),
    ({"prompt_ids": [0, "1"]}, "prompt_ids[1]"),
    ({"response_ids": None}, "response_ids"),
    ({"top_k": 5000}, "top_k"),
    ({"extra": 1}, "extra"),
    ({"candidate_ids": [[0], [True]]}, "candidate_ids[1][0]"),
    ({"candidate_ids": [[0], [1]]}, None),
]


async def test_the_description_has_examples_that_hold(tmp_path: Path) -> None:
    broker = MemoryBroker()
    deps = await build_deps(
        Config.model_validate({"model": {"student_model_path": save_model(tmp_path / "m")}}), broker
    )
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        described = (await http.get("/openapi.json")).json()
    schemas = described["components"]["schemas"]
    for example in schemas["ForcedBody"]["examples"]:
        ForcedBody.model_validate(example)
    for example in schemas["ForcedReply"]["examples"]:
        ForcedReply.model_validate(example)
    answers = described["paths"]["/v1/forced_logprobs"]["post"]["responses"]
    for status in ("422", "502", "503"):
        ProblemReply.model_validate(answers[status]["content"]["application/json"]["example"])
    assert schemas["ForcedBody"]["properties"]["response_ids"]["description"]
    await broker.close()


ODD_BODIES: list[tuple[bytes, str]] = [
    (b"", "the body: Field required"),
    (b"{nope", "the body is no JSON"),
    (b"\xff\xfe", "the body is no JSON"),
    (b"[1]", "the body: Input should be a valid dictionary"),
    (b"[" * 100_000, "the body nests too deep"),
    (b'{"prompt_ids": [' + b"9" * 5000 + b"]}", "the body nests too deep, or holds a number too long"),
    (b'{"prompt_ids": [0], "response_ids": [NaN]}', "response_ids[0]: nan: "),
    (b'{"prompt_ids": [0], "response_ids": [1], "\\ud800": 1}', "the body: '\\ud800': Input should be a valid string"),
    (b'{"prompt_ids": [0], "response_ids": [1], "model": "\\ud800"}', "model: "),
]


async def test_bodies_that_are_none_are_answered_in_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = MemoryBroker()
    model = save_model(tmp_path / "m")
    deps = await build_deps(Config.model_validate({"model": {"student_model_path": model}}), broker)
    deps.engine._scorer = ForcedScorer(
        FakeDialect(), EngineFacts("fake", "1", "teacher", 64), vocabulary_size=4, max_concurrency=1
    )
    deps.engine._report = ProbeReport("fake", "1", "teacher", 64, 4, 0)
    transport, headers = ASGITransport(make_app(deps)), {"Content-Type": "application/json"}
    async with AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
        for body, begins in ODD_BODIES:
            refused = await http.post("/v1/forced_logprobs", content=body)
            assert refused.status_code == 422
            assert refused.json()["detail"]["message"].startswith(begins)
        monkeypatch.setattr(routes, "MAX_BODY_BYTES", 100)
        large = await http.post("/v1/forced_logprobs", content=b" " * 101)
        assert (large.status_code, large.json()["detail"]["reason"]) == (413, "too_large")
    await broker.close()


async def test_forced_logprobs_over_http(tmp_path: Path) -> None:
    broker = MemoryBroker()
    settings: dict[str, Any] = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "prm": {"prm_url": "http://127.0.0.1:9"},
    }
    deps = await build_deps(Config.model_validate(settings), broker)
    body = {"prompt_ids": [0, 1], "response_ids": [2, 3], "top_k": 2}
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        nothing = {"probed": False, "needed": True, "problem": None, "problem_reason": None, "control": None}
        assert (await http.get("/v1/prm")).json() == {"teacher": nothing}
        reply = await http.post("/v1/forced_logprobs", json=body)
        assert (reply.status_code, reply.json()["detail"]["reason"]) == (503, "prm_engine")
        facts = EngineFacts("fake", "1", "teacher", 64)
        deps.engine._scorer = ForcedScorer(FakeDialect(), facts, vocabulary_size=4, max_concurrency=1)
        deps.engine._report = ProbeReport("fake", "1", "teacher", 64, 4, 0)
        scored = (await http.post("/v1/forced_logprobs", json=body)).json()
        assert scored["logprobs"] == pytest.approx([score_of(1, 2), score_of(2, 3)])
        assert scored["topk_ids"] == [[0, 1], [0, 1]]
        assert len(scored["tail_logprobs"]) == 2
        plain = (await http.post("/v1/forced_logprobs", json={**body, "top_k": 0})).json()
        assert plain["topk_ids"] is None
        outside = await http.post("/v1/forced_logprobs", json={**body, "response_ids": [4]})
        assert (outside.status_code, outside.json()["detail"]["reason"]) == (422, "teacher_misaligned")
        for changes, field in BROKEN:
            refused = await http.post("/v1/forced_logprobs", json={**body, **changes})
            detail = refused.json()["detail"]
            assert (refused.status_code, detail["reason"], detail["field"]) == (422, "invalid", field)
            assert field is None or detail["message"].startswith(f"{field}: ")
        given = {**body, "top_k": 0, "candidate_ids": [[0, 1], [1, 2]]}
        unsupported = await http.post("/v1/forced_logprobs", json=given)
        assert (unsupported.status_code, unsupported.json()["detail"]["reason"]) == (422, "unsupported")
        other = await http.post("/v1/forced_logprobs", json={**body, "model": "other"})
        assert "model: 'other' is asked" in other.json()["detail"]["message"]
        deps.engine._scorer.dialect.value = None  # type: ignore[attr-defined]
        missing = await http.post("/v1/forced_logprobs", json=body)
        assert (missing.status_code, missing.json()["detail"]["reason"]) == (502, "teacher_missing")
        assert (await http.get("/v1/prm")).json()["teacher"]["model"] == "teacher"
        assert "hintloop_teacher_turns" in (await http.get("/metrics")).text
    await deps.engine.close()
    await broker.close()
