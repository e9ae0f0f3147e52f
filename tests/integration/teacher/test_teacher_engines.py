"""The teacher against real engines: scores as transformers has them, prompts as the engine served them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hintloop_contract.config.schema import Config
from hintloop_teacher.dialects.base import Question
from hintloop_teacher.errors import MisalignedError, ProbeError, RefusedError, RenderMismatchError, TooLongError
from hintloop_teacher.forced import tail_logprobs
from hintloop_teacher.http import EngineClient
from hintloop_teacher.policy_engines import PolicyEngines
from hintloop_teacher.probe import detect, probe
from hintloop_teacher.rendering import Renderer, Request
from hintloop_teacher.scoring import ForcedScorer
from hintloop_teacher.vocabulary import Vocabulary, read_vocabulary
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.engine

PROMPT = "<|im_start|>user\nWhat is a volcano?<|im_end|>\n<|im_start|>assistant\n"
RESPONSE = "A volcano is a mountain that opens downward to a pool of molten rock.<|im_end|>"
HINT = "\n\n[user's hint / instruction]\nOne short sentence, {please}."


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Any:
    """Each engine in turn: its `kind`, `base_url` and model `name`."""
    return request.getfixturevalue(f"{request.param}_policy")


@pytest.fixture(scope="module")
def vocabulary(smollm2_dir: Path) -> Vocabulary:
    return read_vocabulary(str(smollm2_dir), str(smollm2_dir))


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path, vocabulary: Vocabulary) -> np.ndarray:
    """float64 log-probabilities [T, V] of the response under the prompt, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    prompt, response = vocabulary.encode(PROMPT), vocabulary.encode(RESPONSE)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + response])).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    # Row i predicts token i + 1.
    return logprobs[len(prompt) - 1 : -1].numpy()


@pytest.fixture
async def client(engine: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.base_url, dependency="prm-engine")
    yield client
    await client.close()


@pytest.fixture
async def renderer(engine: Any, vocabulary: Vocabulary) -> AsyncIterator[Renderer]:
    def connect(address: str) -> EngineClient:
        return EngineClient(address, dependency="policy-engine")

    renderer = Renderer(PolicyEngines(connect, [engine.base_url], engine.kind), vocabulary)
    yield renderer
    await renderer.close()


def section(**changes: object) -> Config:
    return Config.model_validate({"prm": changes})


async def scorer_of(client: EngineClient, vocabulary: Vocabulary, top_k: int) -> ForcedScorer:
    scorer, _ = await probe(client, section().prm, vocabulary, top_k)
    return scorer


async def test_probe_finds_dialect_limits_and_alignment(
    engine: Any, client: EngineClient, vocabulary: Vocabulary
) -> None:
    assert await detect(client) == engine.kind
    _, report = await probe(client, section().prm, vocabulary, 16)
    # SGLang calls itself by the weights that it loaded last, which another test may have changed.
    async with httpx.AsyncClient() as http:
        listed = (await http.get(f"{engine.base_url}/v1/models")).json()
    assert report.model == listed["data"][0]["id"]
    assert report.max_input_len == {"vllm": 4095, "sglang": 4089}[engine.kind]
    assert report.vocabulary_size == 49152
    assert report.version
    assert report.checks == {
        "vocabulary": "equal to the student's",
        "forced_scoring": "aligned",
        "top_k": "16 candidates",
    }


async def test_scores_equal_transformers(client: EngineClient, vocabulary: Vocabulary, reference: np.ndarray) -> None:
    scorer = await scorer_of(client, vocabulary, 8)
    prompt, response = vocabulary.encode(PROMPT), vocabulary.encode(RESPONSE)
    scores = await scorer.score(prompt, response, 8)
    expected = reference[np.arange(len(response)), response]
    assert np.abs(scores.logprobs - expected).max() < 1e-4
    best = np.sort(reference, axis=1)[:, ::-1][:, :8]
    assert scores.topk_logprobs is not None and scores.topk_ids is not None and scores.tail_logprobs is not None
    assert np.abs(scores.topk_logprobs - best).max() < 1e-4
    named = np.take_along_axis(reference, scores.topk_ids.astype(np.int64), axis=1)
    assert np.abs(scores.topk_logprobs - named).max() < 1e-4
    rest = np.log(np.exp(np.sort(reference, axis=1)[:, :-8]).sum(axis=1))
    heavy = rest > np.log(1e-4)
    assert np.abs(scores.tail_logprobs - rest)[heavy].max() < 2e-2
    assert np.abs(tail_logprobs(best) - rest).max() < 1e-2
    alone = await scorer.score(prompt, response)
    assert alone.topk_ids is None
    assert np.abs(alone.logprobs - scores.logprobs).max() < 1e-4


async def test_ids_outside_the_vocabulary_never_reach_the_engine(client: EngineClient, vocabulary: Vocabulary) -> None:
    scorer = await scorer_of(client, vocabulary, 0)
    with pytest.raises(MisalignedError, match="response token 1 is 49152, outside the vocabulary of 49152"):
        await scorer.score([1], [5, 49152])
    limit = scorer.facts.max_input_len
    assert limit is not None
    with pytest.raises(TooLongError, match=f"takes {limit}"):
        await scorer.score([1] * (limit - 7), [5] * 8)
    # Past the limit the engine itself refuses. The longest that passes would take half a minute, also abandoned.
    with pytest.raises(RefusedError, match="400"):
        await scorer.dialect.score(scorer.facts.model, Question([1] * (limit - 7), [5] * 8))


async def test_too_many_candidates_are_refused_at_start(vllm_policy: Any, vocabulary: Vocabulary) -> None:
    client = EngineClient(vllm_policy.base_url, dependency="prm-engine")
    try:
        with pytest.raises(ProbeError, match="refuses 65 candidates.*topk_opd.top_k"):
            await probe(client, section().prm, vocabulary, 65)
    finally:
        await client.close()


async def test_completions_dialect_needs_ids(vllm_policy: Any, vocabulary: Vocabulary, reference: np.ndarray) -> None:
    client = EngineClient(vllm_policy.base_url, dependency="prm-engine")
    try:
        scorer, report = await probe(client, section(engine="openai").prm, vocabulary, 4)
        assert report.checks["vocabulary"] == "proven by echoed ids alone"
        prompt, response = vocabulary.encode(PROMPT), vocabulary.encode(RESPONSE)
        scores = await scorer.score(prompt, response, 4)
        assert np.abs(scores.logprobs - reference[np.arange(len(response)), response]).max() < 1e-4
        best = np.sort(reference, axis=1)[:, ::-1][:, :4]
        assert scores.topk_logprobs is not None
        assert np.abs(scores.topk_logprobs - best).max() < 1e-4
    finally:
        await client.close()


async def served_prompt_ids(engine: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Prompt ids as the chat route itself reports them."""
    body: dict[str, object] = {"model": engine.name, "messages": messages, "max_tokens": 1, "temperature": 0}
    flag = "return_token_ids" if engine.kind == "vllm" else "return_prompt_token_ids"
    async with httpx.AsyncClient(timeout=120) as http:
        reply = (await http.post(f"{engine.base_url}/v1/chat/completions", json={**body, flag: True})).json()
    ids = reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"]
    return list(ids)


DIALOGUES: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is rain?"}],
    [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " rain?"}]}],
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is rain?"},
        {"role": "assistant", "content": "Water."},
        {"role": "user", "content": "And snow?"},
    ],
]


@pytest.mark.parametrize("messages", DIALOGUES)
async def test_null_hint_renders_the_served_ids_and_a_hint_only_adds(
    engine: Any,
    renderer: Renderer,
    smollm2_dir: Path,
    messages: list[dict[str, Any]],
) -> None:
    captured = await served_prompt_ids(engine, messages)
    request = Request(engine.kind, engine.base_url, messages, None, {}, captured)
    assert await renderer.render(request, messages) == captured
    hinted = await renderer.hinted_ids(request, HINT)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    plain_text, hinted_text = tokenizer.decode(captured), tokenizer.decode(hinted)
    assert HINT in hinted_text
    assert hinted_text.replace(HINT, "") == plain_text
    assert hinted[-5:] == captured[-5:]


async def test_a_prompt_that_was_rewritten_is_spliced(engine: Any, renderer: Renderer, smollm2_dir: Path) -> None:
    served = [{"role": "system", "content": "Secret persona."}, *DIALOGUES[2][1:]]
    captured = await served_prompt_ids(engine, served)
    request = Request(engine.kind, engine.base_url, DIALOGUES[2], None, {}, captured)
    hinted = await renderer.hinted_ids(request, HINT)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    assert tokenizer.decode(hinted) == tokenizer.decode(captured).replace("And snow?", f"And snow?{HINT}")


async def test_a_prompt_with_another_number_of_user_turns_is_not(engine: Any, renderer: Renderer) -> None:
    captured = await served_prompt_ids(engine, DIALOGUES[2])
    request = Request(engine.kind, engine.base_url, DIALOGUES[0], None, {}, captured)
    with pytest.raises(RenderMismatchError, match="no splice: the marker stands 2 times"):
        await renderer.hinted_ids(request, HINT)
