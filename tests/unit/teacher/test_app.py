import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.testing.memory import MemoryBroker
from hintloop_teacher.app import make_app
from hintloop_teacher.dialects.base import EngineFacts
from hintloop_teacher.probe import ProbeReport
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import read_vocabulary, same_tokenizer
from hintloop_teacher.wiring import build_deps
from httpx import ASGITransport, AsyncClient
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

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


async def test_forced_logprobs_over_http(tmp_path: Path) -> None:
    broker = MemoryBroker()
    settings: dict[str, Any] = {
        "model": {"student_model_path": save_model(tmp_path / "m")},
        "prm": {"prm_url": "http://127.0.0.1:9"},
    }
    deps = await build_deps(Config.model_validate(settings), broker)
    body = {"prompt_ids": [0, 1], "response_ids": [2, 3], "top_k": 2}
    async with AsyncClient(transport=ASGITransport(make_app(deps)), base_url="http://test") as http:
        assert (await http.get("/v1/prm")).json() == {"teacher": {"probed": False, "needed": True}}
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
        for broken in ({**body, "response_ids": []}, {**body, "prompt_ids": [-1]}, {**body, "extra": 1}):
            assert (await http.post("/v1/forced_logprobs", json=broken)).status_code == 422
        assert (await http.get("/v1/prm")).json()["teacher"]["model"] == "teacher"
        assert "hintloop_teacher_turns" in (await http.get("/metrics")).text
    await deps.engine.close()
    await broker.close()
