"""What the dialects read from recorded answers of the real engines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hintloop_teacher.dialects import openai, sglang, vllm
from hintloop_teacher.errors import MisalignedError, MissingError
from hintloop_teacher.forced import check_scores

WIRE = Path(__file__).parents[2] / "fixtures" / "wire"


def body(name: str) -> tuple[list[int], Any]:
    recorded = json.loads((WIRE / f"{name}.json").read_text())
    request = recorded["request"]["body"]
    return request.get("prompt") or request["input_ids"], recorded["body"]


@pytest.mark.parametrize(("name", "top_k"), [("vllm/score_k0", 0), ("vllm/score_k3", 3)])
def test_vllm_entry_t_belongs_to_token_t(name: str, top_k: int) -> None:
    ids, answer = body(name)
    choice = answer["choices"][0]
    scores = check_scores(vllm.read_scores(choice, 5, ids[5:], top_k), ids[5:], top_k)
    expected = [
        entry[str(token)]["logprob"] for entry, token in zip(choice["prompt_logprobs"], ids, strict=True) if entry
    ]
    assert scores.logprobs.tolist() == pytest.approx(expected[4:])
    if top_k:
        assert scores.topk_ids is not None
        ranked = [
            [int(key) for key, value in sorted(entry.items(), key=lambda item: item[1]["rank"]) if value["rank"] <= 3]
            for entry in choice["prompt_logprobs"][5:]
        ]
        assert scores.topk_ids.tolist() == ranked


def test_vllm_notices_other_tokens_and_holes() -> None:
    ids, answer = body("vllm/score_k0")
    choice = answer["choices"][0]
    with pytest.raises(MisalignedError):
        vllm.read_scores(choice, 4, ids[5:], 0)
    with pytest.raises(MisalignedError):
        vllm.read_scores(choice, 5, [*ids[5:-1], 7], 0)
    with pytest.raises(MissingError, match="token 0 is null"):
        vllm.read_scores({**choice, "prompt_logprobs": [None] * len(ids)}, 5, ids[5:], 0)
    with pytest.raises(MissingError):
        vllm.read_scores({**choice, "prompt_logprobs": None}, 5, ids[5:], 0)


@pytest.mark.parametrize(
    ("name", "start"), [("sglang/score_k0", 0), ("sglang/score_k3", 0), ("sglang/score_start_len", 8)]
)
def test_sglang_starts_one_token_early(name: str, start: int) -> None:
    ids, answer = body(name)
    top_k = 3 if name.endswith("k3") else 0
    response = ids[start + 1 :]
    raw = sglang.read_scores(answer["meta_info"], ids[start], len(response), top_k)
    scores = check_scores(raw, response, top_k)
    expected = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]]
    assert scores.logprobs.tolist() == pytest.approx(expected)


def test_sglang_notices_another_start() -> None:
    ids, answer = body("sglang/score_start_len")
    with pytest.raises(MisalignedError):
        sglang.read_scores(answer["meta_info"], ids[7], 3, 0)
    with pytest.raises(MisalignedError):
        sglang.read_scores(answer["meta_info"], ids[8], 4, 0)
    with pytest.raises(MissingError):
        sglang.read_scores(answer["meta_info"], ids[8], 3, 2)
    with pytest.raises(MissingError):
        sglang.read_scores({}, ids[8], 3, 0)


def test_both_engines_agree() -> None:
    ids, ours = body("vllm/score_k3")
    same, theirs = body("sglang/score_k3")
    assert ids == same
    left = check_scores(vllm.read_scores(ours["choices"][0], 1, ids[1:], 3), ids[1:], 3)
    right = check_scores(sglang.read_scores(theirs["meta_info"], ids[0], len(ids) - 1, 3), ids[1:], 3)
    assert left.logprobs.tolist() == pytest.approx(right.logprobs.tolist(), abs=1e-4)
    assert left.topk_ids is not None and right.topk_ids is not None
    assert left.topk_ids.tolist() == right.topk_ids.tolist()


def test_completions_that_do_not_name_ids_prove_nothing() -> None:
    ids, answer = body("vllm/score_echo")
    logprobs = answer["choices"][0]["logprobs"]
    with pytest.raises(MisalignedError, match="scored None"):
        check_scores(openai.read_scores(logprobs, 5, ids[5:], 0), ids[5:], 0)
    with pytest.raises(MissingError, match="not named by id"):
        openai.read_scores(logprobs, 5, ids[5:], 2)
    trusted = check_scores(openai.read_scores(logprobs, 5, ids[5:], 0, trust_positions=True), ids[5:], 0)
    assert trusted.logprobs.tolist() == pytest.approx(logprobs["token_logprobs"][5:])
    with pytest.raises(MisalignedError, match="echoed 12 tokens"):
        openai.read_scores(logprobs, 4, ids[5:], 0, trust_positions=True)
