"""What the engines are compared with: transformers on the same weights, and the engines' own wire calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = (
    "What is the capital of France?",
    "Explain in detail why the sky is blue during the day and red at sunset.",
)


class Served(Protocol):
    kind: str
    base_url: str
    model_dir: Path
    name: str


class Engine:
    """The few calls these tests make, spoken to either engine."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.is_vllm = served.kind == "vllm"
        self.client = httpx.Client(base_url=served.base_url, timeout=300.0)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def forced_scores(self, ids: list[int]) -> list[float]:
        """Log-probability of ids[1:], each given all before it."""
        if self.is_vllm:
            body = {"model": self.served.name, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
            entries = self.post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
            return [entry[str(token)]["logprob"] for entry, token in zip(entries[1:], ids[1:], strict=True)]
        body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0}
        answer = self.post("/generate", {**body, "sampling_params": {"max_new_tokens": 0}})
        entries = answer["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == ids
        return [entry[0] for entry in entries[1:]]

    def greedy_ids(self, ids: list[int], num_tokens: int) -> list[int]:
        if self.is_vllm:
            body = {"model": self.served.name, "prompt": ids, "max_tokens": num_tokens, "temperature": 0.0}
            answer = self.post("/v1/completions", {**body, "return_token_ids": True})
            return list(answer["choices"][0]["token_ids"])
        params = {"max_new_tokens": num_tokens, "temperature": 0.0}
        return list(self.post("/generate", {"input_ids": ids, "sampling_params": params})["output_ids"])

    def load(self, directory: Path) -> None:
        """New weights the way they are published: pause, load, flush, resume."""
        if self.is_vllm:
            self.post("/pause?mode=keep")
            call = {"method": "hintloop_reload", "kwargs": {"weights_path": str(directory)}}
            (result,) = self.post("/collective_rpc", call)["results"]
            assert result["success"], result
            assert self.post("/reset_prefix_cache?reset_running_requests=true")["success"]
            self.post("/resume")
            return
        self.post("/pause_generation", {"mode": "retract"})
        result = self.post("/update_weights_from_disk", {"model_path": str(directory), "flush_cache": True})
        assert result["success"], result
        self.post("/continue_generation", {})


@dataclass(frozen=True)
class Reference:
    """transformers in float32 on one set of weights."""

    model: Any
    tokenizer: Any

    def prompt_ids(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def forced_scores(self, ids: list[int]) -> list[float]:
        logits_TV = self.model(torch.tensor([ids])).logits[0].float()
        logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
        # Position t predicts token t + 1.
        return [float(logprobs_TV[t, ids[t + 1]]) for t in range(len(ids) - 1)]

    @torch.no_grad()
    def greedy_ids(self, ids: list[int], num_tokens: int) -> list[int]:
        out = self.model.generate(torch.tensor([ids]), max_new_tokens=num_tokens, do_sample=False)
        return [int(token) for token in out[0, len(ids) :]]


def load_reference(directory: Path) -> Reference:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return Reference(model.eval(), AutoTokenizer.from_pretrained(directory))


@pytest.fixture(scope="session")
def base(smollm2_dir: Path) -> Reference:
    return load_reference(smollm2_dir)


@pytest.fixture(scope="session")
def perturbed_dir(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with every weight scaled at random by some per cent: other scores, still some sense."""
    directory = tmp_path_factory.mktemp("perturbed")
    reference = load_reference(smollm2_dir)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in reference.model.parameters():
            parameter.mul_(1 + 0.05 * torch.randn(parameter.shape, generator=generator))
    reference.model.save_pretrained(directory)
    reference.tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def perturbed(perturbed_dir: Path) -> Reference:
    return load_reference(perturbed_dir)


@pytest.fixture(scope="session", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each of the two engines in turn, with the base weights loaded."""
    running = Engine(request.getfixturevalue(f"{request.param}_policy"))
    yield running
    running.client.close()
