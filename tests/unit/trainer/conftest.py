"""Tiny students and samples, and one process group a test process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import megatron  # noqa: F401  # before anything of megatron-core
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron import parallel
from hintloop_trainer.objective import objective_from
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 131
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}


def tiny_model(family: str, *, tied: bool, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model of two layers, four heads of 32, two key-value groups; a mixture has four experts."""
    config_type, model_type = FAMILIES[family]
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "initializer_range": 0.1,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **overrides,
    }
    if family == "qwen2":
        # Its head_dim always is hidden_size / heads.
        settings.update(hidden_size=128)
        settings.pop("head_dim")
    if family == "qwen3_moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
        settings = {**experts, **settings}
    torch.manual_seed(seed)
    model = model_type(config_type(**settings)).to(torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            # Trained models have norms other than one and biases other than zero.
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="session")
def layout() -> Iterator[parallel.Layout]:
    # Other tests may have started the one process group that a process can have.
    if dist.is_initialized():
        yield parallel.layout()
        return
    yield parallel.start(1, 1, seed=1)
    parallel.stop()


@pytest.fixture
def student(tmp_path: Path) -> Callable[..., Path]:
    """Save a tiny model; its directory."""

    def save(family: str = "qwen3", *, tied: bool = True, seed: int = 0, **overrides: Any) -> Path:
        directory = tmp_path / f"{family}-{tied}-{seed}"
        tiny_model(family, tied=tied, seed=seed, **overrides).save_pretrained(directory)
        return directory

    return save


def build_learner(directory: Path, layout: parallel.Layout, **sections: dict[str, Any]) -> Learner:
    """A learner of the student in ``directory``, float32, four samples a step; ``sections`` are merged over that."""
    base: dict[str, dict[str, Any]] = {
        "model": {"student_model_path": str(directory), "dtype": "float32"},
        "rollout": {"rollout_batch_size": 4},
        "training": {"train_batch_size": 4},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    config = Config.model_validate(base)
    return Learner(config, objective_from(config, load_loss(config.custom_loss, [directory])), layout)


def make_sample(turn: int = 0, *, num_prompt: int = 5, num_response: int = 4, **fields: Any) -> Sample:
    """A well-formed sample of random tokens with teacher log-probabilities; any field may be replaced."""
    rng = np.random.default_rng(turn)
    settings: dict[str, Any] = {
        "turn_id": f"turn-{turn:04d}",
        "session_id": "session",
        "prompt_ids": pack(rng.integers(0, VOCAB, num_prompt), "int32"),
        "response_ids": pack(rng.integers(0, VOCAB, num_response), "int32"),
        "behaviour_logprobs": pack(-rng.uniform(0.1, 6.0, num_response), "float32"),
        "behaviour_space": "processed",
        "sampling": Sampling(temperature=0.7),
        "version_oldest": 1,
        "version_newest": 1,
        "captured_ms": 0,
        "score": int(rng.choice([-1, 1])),
        "hint": "One short sentence please.",
        "teacher_logprobs": pack(-rng.uniform(0.1, 6.0, num_response), "float32"),
        **fields,
    }
    return Sample(**settings)


def following(before: Sample, after: Sample) -> Sample:
    """``after`` as the turn that goes on from ``before``: its prompt behind that turn's prompt and answer."""
    ids = [unpack(part) for part in (before.prompt_ids, before.response_ids, after.prompt_ids)]
    return msgspec.structs.replace(after, prompt_ids=pack(np.concatenate(ids), "int32"))
