"""A conversation with a real engine: later turns begin with the ids of earlier ones, and the step shows it."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hintloop_contract.config.schema import Config
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer.learner import Learner
from hintloop_trainer.losses.loading import load_loss
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.objective import objective_from

from .conftest import students

pytestmark = pytest.mark.engine

ASKED = ("What is copper used for?", "Tell me more, please.", "Make it shorter.")


def converse(engine: Any) -> list[Sample]:
    """A sample of each turn, with the ids that the engine had; greedy, and no answer is cut."""
    messages: list[dict[str, str]] = []
    made = []
    for number, asked in enumerate(ASKED):
        messages.append({"role": "user", "content": asked})
        body = {"model": engine.name, "messages": messages, "temperature": 0.0, "return_token_ids": True}
        reply = httpx.post(f"{engine.base_url}/v1/chat/completions", json=body, timeout=120.0).raise_for_status().json()
        choice = reply["choices"][0]
        assert choice["finish_reason"] == "stop"
        prompt, answer = (np.array(ids) for ids in (reply["prompt_token_ids"], choice["token_ids"]))
        ids = {"prompt_ids": pack(prompt, "int32"), "response_ids": pack(answer, "int32")}
        made.append(students.make_sample(number, num_response=len(answer), **ids))
        messages.append({"role": "assistant", "content": choice["message"]["content"]})
    return made


def test_turns_of_a_real_conversation_are_one_sequence(vllm_policy: Any, layout: Layout) -> None:
    made = converse(vllm_policy)
    config = Config.model_validate(
        {
            "model": {"student_model_path": str(vllm_policy.model_dir), "dtype": "float32"},
            "rollout": {"rollout_batch_size": len(made)},
            "training": {"train_batch_size": len(made), "micro_batch_size": 1},
            "advantage": {"estimator": "on_policy_distillation"},
        }
    )
    learner = Learner(config, objective_from(config, load_loss(None, [])), layout)
    learner.begin([[msgspec.msgpack.encode(sample) for sample in made]])
    work = learner.step(0).work
    inputs = [[*unpack(sample.prompt_ids), *unpack(sample.response_ids)][:-1] for sample in made]
    within = [any(later[: len(turn)] == turn for later in inputs[number + 1 :]) for number, turn in enumerate(inputs)]
    # Not every answer is tokenised again as it was sampled; these are, but for what the processor rounds otherwise.
    assert any(within)
    assert work.num_positions == sum(len(turn) for turn, inside in zip(inputs, within, strict=True) if not inside)
    assert work.num_shared == sum(len(turn) for turn, inside in zip(inputs, within, strict=True) if inside)
