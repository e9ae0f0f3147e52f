"""The trainer as teacher, and the student's own candidates, against transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hintloop_contract.config.schema import Config
from hintloop_contract.errors import ConfigError
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import forced
from hintloop_trainer.checkpoints import CheckpointStore, TrainerState
from hintloop_trainer.filling import Filler, filling_from
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron.parallel import Layout
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM

from .conftest import VOCAB, build_learner, make_sample

HINT = [17, 99, 4]


def unscored(turn: int, *, hinted: bool) -> Sample:
    """A sample that the teacher left to the trainer; without a hint its hinted prompt is the prompt."""
    sample = make_sample(turn, num_prompt=3 + turn, num_response=2 + 3 * turn, teacher_logprobs=None)
    prompt = unpack(sample.prompt_ids).tolist()
    hinted_ids = [*prompt[:-1], *HINT, prompt[-1]] if hinted else prompt
    return msgspec.structs.replace(sample, hinted_prompt_ids=pack(hinted_ids, "int32"))


def make_learner(
    directory: Path, layout: Layout, *, topk: bool = False, **sections: Any
) -> tuple[Learner, Config, Any]:
    base: dict[str, Any] = {
        "training": {"learning_rate": 1e-2, "custom_loss_path": "topk_reverse_kl.py" if topk else None},
        "prm": {"teacher_source": "trainer"},
        "topk_opd": {"top_k": 5},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    learner = build_learner(directory, layout, **base)
    return learner, learner.config, learner.objective.loss


class Here:
    """Calls a method on the one rank there is."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(forced, method)(self.learner, *arguments)


def filled(learner: Learner, config: Config, loss: Any, samples: list[Sample]) -> list[Sample]:
    filler = Filler(filling_from(config, loss, VOCAB), Here(learner), None, lambda what, work: None)
    found = filler.fill(samples)
    assert not found.unscorable
    return [found.ready[sample.turn_id] for sample in samples]


def stepped(learner: Learner, samples: list[Sample]) -> Any:
    learner.begin([[msgspec.msgpack.encode(sample) for sample in samples]])
    return learner.step(0)


def response_rows(directory: Path, sample: Sample, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities [T, V] at the response's places behind ``prompt``, the plain way."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + unpack(sample.response_ids).tolist()])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


@pytest.mark.parametrize("weights", ["initial", "current", "ema"])
def test_without_a_hint_every_advantage_is_exactly_zero(
    student: Callable[..., Path], layout: Layout, weights: str
) -> None:
    learner, config, loss = make_learner(student(), layout, prm={"teacher_weights": weights})
    samples = filled(learner, config, loss, [unscored(turn, hinted=False) for turn in range(4)])
    result = stepped(learner, samples)
    advantages = result.tally.of("advantage")
    assert (advantages.count, advantages.largest) == (sum(len(s.response_ids) for s in samples), 0.0)
    assert (result.loss, result.grad_norm) == (0.0, 0.0)
    hinted = filled(learner, config, loss, [unscored(turn, hinted=True) for turn in range(4)])
    moved = stepped(learner, hinted)
    assert moved.tally.of("advantage").largest > 0.01
    assert moved.grad_norm > 0.01


def test_the_gradient_changes_with_the_hint(student: Callable[..., Path], layout: Layout) -> None:
    norms = []
    for hint in ([17, 99, 4], [5, 5, 120]):
        learner, config, loss = make_learner(student(), layout)
        samples = [unscored(turn, hinted=False) for turn in range(4)]
        hinted = [
            msgspec.structs.replace(s, hinted_prompt_ids=pack([*hint, *unpack(s.prompt_ids).tolist()], "int32"))
            for s in samples
        ]
        norms.append(stepped(learner, filled(learner, config, loss, hinted)).grad_norm)
    assert abs(norms[0] - norms[1]) > 1e-3


def test_scores_are_those_of_transformers_behind_the_hinted_prompt(
    student: Callable[..., Path], layout: Layout
) -> None:
    directory = student()
    learner, config, loss = make_learner(directory, layout, topk=True)
    asked = [unscored(turn, hinted=True) for turn in range(4)]
    for sample in filled(learner, config, loss, asked):
        assert sample.hinted_prompt_ids is not None and sample.teacher_logprobs is not None
        rows = response_rows(directory, sample, unpack(sample.hinted_prompt_ids).tolist())
        plain = rows.gather(-1, torch.tensor(unpack(sample.response_ids).astype(np.int64))[:, None])[:, 0]
        np.testing.assert_allclose(unpack(sample.teacher_logprobs), plain, atol=1e-5)
        best = rows.topk(5)
        assert sample.teacher_topk_ids and sample.teacher_topk_logprobs and sample.teacher_tail_logprobs
        np.testing.assert_array_equal(unpack(sample.teacher_topk_ids), best.indices)
        np.testing.assert_allclose(unpack(sample.teacher_topk_logprobs), best.values, atol=1e-5)
        tail = (1 - best.values.double().exp().sum(-1)).log()
        np.testing.assert_allclose(unpack(sample.teacher_tail_logprobs), tail, atol=1e-4)
        assert sample.teacher_model == "trainer (initial)"


def test_the_students_candidates_are_its_likeliest_tokens_without_the_hint(
    student: Callable[..., Path], layout: Layout
) -> None:
    directory = student("llama", tied=False)
    learner, config, loss = make_learner(directory, layout, topk=True, topk_opd={"use_teacher_topk": False})
    asked = [unscored(turn, hinted=True) for turn in range(4)]
    for sample in filled(learner, config, loss, asked):
        assert sample.teacher_topk_ids and sample.teacher_topk_logprobs and sample.hinted_prompt_ids
        plain = response_rows(directory, sample, unpack(sample.prompt_ids).tolist()).topk(5).indices
        np.testing.assert_array_equal(unpack(sample.teacher_topk_ids), plain)
        hinted = response_rows(directory, sample, unpack(sample.hinted_prompt_ids).tolist()).gather(-1, plain)
        np.testing.assert_allclose(unpack(sample.teacher_topk_logprobs), hinted, atol=1e-5)


def test_ids_that_no_tokenizer_has_are_never_chosen(student: Callable[..., Path], layout: Layout) -> None:
    directory = student("llama", tied=False)
    named = VOCAB // 2
    Tokenizer(WordLevel({str(token): token for token in range(named)}, unk_token="0")).save(
        str(directory / "tokenizer.json")
    )
    learner, config, loss = make_learner(directory, layout, topk=True, topk_opd={"use_teacher_topk": False})
    for sample in filled(learner, config, loss, [unscored(turn, hinted=True) for turn in range(4)]):
        assert sample.teacher_topk_ids
        rows = response_rows(directory, sample, unpack(sample.prompt_ids).tolist())
        assert int(rows.topk(5).indices.max()) >= named, "or this test shows nothing"
        np.testing.assert_array_equal(unpack(sample.teacher_topk_ids), rows[:, :named].topk(5).indices)
    section = config.topk_opd.model_copy(update={"top_k": named + 1})
    with pytest.raises(ConfigError, match=f"top_k {named + 1} is more than the vocabulary's {named} tokens"):
        filling_from(config.model_copy(update={"topk_opd": section}), loss, VOCAB)


def test_the_students_candidates_pull_it_to_the_teacher(student: Callable[..., Path], layout: Layout) -> None:
    learner, config, loss = make_learner(
        student(), layout, topk=True, topk_opd={"use_teacher_topk": False}, training={"learning_rate": 3e-3}
    )
    losses = []
    for _ in range(10):
        samples = filled(learner, config, loss, [unscored(turn, hinted=True) for turn in range(4)])
        losses.append(stepped(learner, samples).loss)
    assert losses[-1] < 0.5 * losses[0]


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1).clone() for parameter in model.parameters()])


@pytest.mark.parametrize(("weights", "share"), [("initial", 0.0), ("ema", 0.25)])
def test_the_teacher_stays_or_follows(student: Callable[..., Path], layout: Layout, weights: str, share: float) -> None:
    prm = {"teacher_weights": weights, **({"ema_decay": 0.75} if weights == "ema" else {})}
    learner, config, loss = make_learner(student(), layout, prm=prm)
    assert learner.own_teacher is not None
    before = parameters(learner.own_teacher.network)
    stepped(learner, filled(learner, config, loss, [unscored(turn, hinted=True) for turn in range(4)]))
    moved = parameters(learner.model) - before
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(parameters(learner.own_teacher.network), before + share * moved, rtol=1e-5, atol=1e-6)


def test_the_current_weights_need_no_copy(student: Callable[..., Path], layout: Layout) -> None:
    assert make_learner(student(), layout, prm={"teacher_weights": "current"})[0].own_teacher is None
    binary, _, _ = make_learner(student(), layout, advantage={"estimator": "grpo"})
    assert binary.own_teacher is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_holds_the_moving_average(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, dtype: str
) -> None:
    directory = student()
    prm = {"teacher_weights": "ema", "ema_decay": 0.9}
    learner, config, loss = make_learner(directory, layout, prm=prm, model={"dtype": dtype})
    stepped(learner, filled(learner, config, loss, [unscored(turn, hinted=True) for turn in range(4)]))
    state = TrainerState(
        step=1, run="r", lineage=Lineage(), trained_turn_ids=[], num_trained=4, model_path="m", dtype=dtype
    )
    store = CheckpointStore(tmp_path / "checkpoints", learner, 1)
    store.begin(state, None)
    while (path := store.finish()) is None:
        time.sleep(0.05)
    fresh, _, _ = make_learner(directory, layout, prm=prm, model={"dtype": dtype})
    CheckpointStore(tmp_path / "checkpoints", fresh, 1).load(path)
    assert learner.own_teacher is not None and fresh.own_teacher is not None
    assert torch.equal(parameters(fresh.own_teacher.network), parameters(learner.own_teacher.network))
    # What bfloat16 cannot hold of the average goes on after a restart, too.
    for mine, theirs in zip(fresh.own_teacher._averages, learner.own_teacher._averages, strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(parameters(fresh.own_teacher.network), parameters(fresh.model))
    scoring = parameters(fresh.own_teacher.network)
    assert torch.equal(torch.cat([a.reshape(-1) for a in fresh.own_teacher._averages]).to(scoring.dtype), scoring)


def test_scored_samples_and_those_without_a_hint_stay_as_they_are(student: Callable[..., Path], layout: Layout) -> None:
    learner, config, loss = make_learner(student(), layout, advantage={"estimator": "combine"})
    scored, bare = make_sample(1), make_sample(2, teacher_logprobs=None)
    found = filled(learner, config, loss, [scored, bare, unscored(3, hinted=True)])
    assert found[:2] == [scored, bare]
    assert found[2].teacher_logprobs is not None
