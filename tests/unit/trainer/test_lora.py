"""Adapters against PEFT and transformers: what they add, what they learn, what is written, what is kept."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hintloop_trainer import forced
from hintloop_trainer.checkpoints import CheckpointStore, TrainerState, check_same_model
from hintloop_trainer.errors import CheckpointError, ModelError
from hintloop_trainer.learner import Learner
from hintloop_trainer.lineage import Lineage
from hintloop_trainer.megatron import adapter, cpu, logprobs, lora, weights
from hintloop_trainer.megatron.parallel import Layout
from hintloop_trainer.snapshot import adopt
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel

from .conftest import build_learner, make_sample

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
SAMPLES = [msgspec.msgpack.encode(make_sample(turn, num_response=3 + turn)) for turn in range(4)]


def make_learner(directory: Path, layout: Layout, **sections: Any) -> Learner:
    base: dict[str, dict[str, Any]] = {
        "training": {"learning_rate": 1e-2},
        "lora": {"enabled": True, "rank": 4, "alpha": 12},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    return build_learner(directory, layout, **base)


def train(learner: Learner, steps: int = 2) -> list[float]:
    losses = []
    for _ in range(steps):
        learner.begin([SAMPLES])
        losses.append(learner.step(0).loss)
    return losses


@torch.no_grad()
def scores(network: Any) -> list[float]:
    logprobs_TV = network(torch.tensor([IDS])).logits[0].log_softmax(-1)
    return [float(logprobs_TV[t, IDS[t + 1]]) for t in range(len(IDS) - 1)]


def load(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def with_peft(base: Path, adapter: Path, *, trained: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from peft import PeftModel

        return PeftModel.from_pretrained(load(base), adapter, is_trainable=trained)


@pytest.mark.parametrize(
    ("family", "tied", "modules"),
    [
        ("qwen3", True, "all-linear"),
        ("qwen2", False, ["q_proj", "v_proj"]),
        ("llama", True, ["k_proj", "o_proj", "up_proj"]),
        ("llama", False, ["gate_proj", "down_proj"]),
    ],
)
def test_what_is_exported_scores_as_the_trainer_does(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, family: str, tied: bool, modules: Any
) -> None:
    directory = student(family, tied=tied)
    learner = make_learner(directory, layout, lora={"target_modules": modules})
    first = learner.score(IDS)
    assert first == pytest.approx(scores(load(directory)), abs=1e-5)
    train(learner)
    trained = learner.score(IDS)
    assert max(abs(a - b) for a, b in zip(first, trained, strict=True)) > 1e-2
    learner.export_whole(tmp_path / "merged")
    learner.export(tmp_path / "adapter")
    assert scores(load(tmp_path / "merged")) == pytest.approx(trained, abs=1e-5)
    assert scores(with_peft(directory, tmp_path / "adapter")) == pytest.approx(trained, abs=1e-5)
    with lora.adapters_off(learner.model):
        assert learner.score(IDS) == first
    assert learner.score(IDS) == trained


def test_the_adapter_directory_is_pefts(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    learner = make_learner(student(), layout, lora={"target_modules": ["v_proj", "q_proj"], "alpha": 6})
    digest = learner.export(tmp_path / "one")
    assert learner.export(tmp_path / "two") == digest
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (4, 6, ["q_proj", "v_proj"])
    with safe_open(tmp_path / "one" / "adapter_model.safetensors", "pt") as handle:
        shapes = {name: tuple(handle.get_tensor(name).shape) for name in handle.keys()}  # noqa: SIM118
    assert len(shapes) == 2 * 2 * 2
    assert shapes["base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"] == (4, 64)
    assert shapes["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"] == (64, 4)
    with pytest.raises(CheckpointError, match="written once"):
        learner.export(tmp_path / "one")


def test_an_exported_adapter_is_taken_back(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    directory = student()
    learner, fresh = make_learner(directory, layout), make_learner(directory, layout, training={"seed": 2})
    train(learner)
    learner.export(tmp_path / "adapter")
    adapter.load(fresh.model, layout, tmp_path / "adapter")
    assert fresh.score(IDS) == learner.score(IDS)
    with pytest.raises(ModelError, match="set lora.rank and lora.target_modules as they were"):
        adapter.load(make_learner(directory, layout, lora={"rank": 8}).model, layout, tmp_path / "adapter")
    with pytest.raises(ModelError, match="holds adapters of other layers"):
        fewer = make_learner(directory, layout, lora={"target_modules": ["q_proj"]})
        adapter.load(fewer.model, layout, tmp_path / "adapter")


def test_whole_weights_are_exported_for_engines_that_take_no_adapters(
    student: Callable[..., Path], layout: Layout, tmp_path: Path
) -> None:
    learner = make_learner(student(), layout, lora={"publish": "merged"})
    train(learner, 1)
    learner.export(tmp_path / "version")
    assert not (tmp_path / "version" / "adapter_config.json").exists()
    assert scores(load(tmp_path / "version")) == pytest.approx(learner.score(IDS), abs=1e-5)


def test_a_released_adapter_is_gone_back_to(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    directory = student()
    ema = {"teacher_source": "trainer", "teacher_weights": "ema"}
    learner = make_learner(directory, layout, prm=ema)
    train(learner, 1)
    learner.export(tmp_path / "released")
    released = learner.score(IDS)
    train(learner, 1)
    adopt(learner, tmp_path / "released")
    assert learner.score(IDS) == released
    assert learner.own_teacher is not None
    with learner.own_teacher.in_force():
        assert learner.score(IDS) == released
    train(learner, 1)
    assert learner.score(IDS) != released


def random_b(network: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(5)
    for item in lora.adapters(network):
        item.lora_b.data = 0.1 * torch.randn(item.lora_b.shape, generator=generator)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    """Of the sum of the sequence's log-probabilities, without the optimizer's buffers."""
    ids = torch.tensor(IDS)
    for item in lora.adapters(learner.model):
        for factor in (item.lora_a, item.lora_b):
            factor.main_grad.zero_()
    position_ids_BS, mask = torch.arange(len(IDS) - 1)[None], None
    with cpu.quietly():
        hidden_NH = learner.replicated(ids[None, :-1], position_ids_BS, mask).flatten(0, 1)
        ones_N = torch.ones(len(IDS) - 1)
        found = logprobs.score(learner.model, hidden_NH, ids[1:], ones_N, learner.arch.vocab_size)
        found.logprobs_N.sum().backward()
    return {
        f"{item.name}.{letter}": factor.main_grad.clone()
        for item in lora.adapters(learner.model)
        for letter, factor in (("A", item.lora_a), ("B", item.lora_b))
    }


def test_gradients_are_pefts(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    directory = student()
    learner = make_learner(directory, layout)
    random_b(learner.model)
    learner.export(tmp_path / "adapter")
    reference = with_peft(directory, tmp_path / "adapter", trained=True)
    logits = reference(torch.tensor([IDS])).logits[0, :-1].log_softmax(-1)
    logits.gather(-1, torch.tensor(IDS[1:])[:, None]).sum().backward()
    expected = dict(reference.named_parameters())
    for name, gradient in gradients(learner).items():
        layer, letter = name.rsplit(".", 1)
        theirs = expected[f"base_model.model.{layer}.lora_{letter}.default.weight"].grad
        torch.testing.assert_close(gradient, theirs, rtol=1e-4, atol=1e-5)
        assert float(gradient.abs().max()) > 1e-3, name


def test_recomputed_layers_have_the_same_gradients(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    kept = make_learner(directory, layout)
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    recomputed = make_learner(directory, layout, training=again)
    for learner in (kept, recomputed):
        random_b(learner.model)
    expected, found = gradients(kept), gradients(recomputed)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_students_own_weights_cost_no_gradient_and_do_not_move(
    student: Callable[..., Path], layout: Layout
) -> None:
    learner = make_learner(student(), layout)
    adapters = sum(item.lora_a.numel() + item.lora_b.numel() for item in lora.adapters(learner.model))
    assert sum(buffer.grad_data.numel() for buffer in learner.replicated.buffers) == adapters
    optimized = sum(item.numel() for group in learner.optimizer.param_groups for item in group["params"])
    assert optimized == adapters
    before = [place.parameter.clone() for place in weights.places(learner.model, learner.arch, layout)]
    train(learner, 1)
    for old, place in zip(before, weights.places(learner.model, learner.arch, layout), strict=True):
        assert torch.equal(old, place.parameter)


def test_a_is_drawn_as_in_peft_and_b_is_zero(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    one, same = (lora.adapters(make_learner(directory, layout).model) for _ in range(2))
    (other, *_) = lora.adapters(make_learner(directory, layout, training={"seed": 2}).model)
    for mine, theirs in zip(one, same, strict=True):
        bound = mine.lora_a.shape[1] ** -0.5
        assert 0.8 * bound < float(mine.lora_a.detach().abs().max()) <= bound
        assert not mine.lora_b.any()
        assert torch.equal(mine.lora_a, theirs.lora_a)
    assert not torch.equal(one[0].lora_a, other.lora_a)
    assert not torch.equal(one[0].lora_a, one[1].lora_a)


def state(learner: Learner) -> TrainerState:
    return TrainerState(
        step=2,
        run="run",
        lineage=Lineage(),
        trained_turn_ids=[],
        num_trained=8,
        model_path=learner.config.model.student_model_path,
        dtype="float32",
        lora=learner.config.lora.described,
    )


def test_a_checkpoint_holds_adapters_alone_and_training_goes_on(
    student: Callable[..., Path], layout: Layout, tmp_path: Path
) -> None:
    directory = student()
    ema = {"teacher_source": "trainer", "teacher_weights": "ema", "ema_decay": 0.5}
    learner, fresh = (make_learner(directory, layout, prm=ema, training={"seed": seed}) for seed in (1, 2))
    train(learner)
    store = CheckpointStore(tmp_path / "checkpoints", learner, 2)
    store.begin(state(learner), None)
    while (path := store.finish()) is None:
        time.sleep(0.01)
    CheckpointStore(tmp_path / "checkpoints", fresh, 2).load(path)
    assert fresh.score(IDS) == learner.score(IDS)
    taught = [forced.teach(item, HINTED, 0) for item in (learner, fresh)]
    for turn, mine in taught[0].items():
        assert mine.logprobs.tolist() == taught[1][turn].logprobs.tolist()
    assert train(fresh, 1) == train(learner, 1)
    assert fresh.score(IDS) == learner.score(IDS)
    adapters = sum(item.lora_a.numel() + item.lora_b.numel() for item in lora.adapters(learner.model))
    # The factors, two moments of AdamW, the teacher's averages, all float32.
    assert sum(file.stat().st_size for file in path.glob("*.distcp")) < 4 * 4 * adapters + 200_000


def test_a_checkpoint_of_other_adapters_is_refused(student: Callable[..., Path], layout: Layout) -> None:
    directory = student()
    saved = state(make_learner(directory, layout))
    other = make_learner(directory, layout, lora={"rank": 8}).config
    with pytest.raises(Exception, match="asks for rank 8, alpha 12.*was made with rank 4, alpha 12"):
        check_same_model(saved, other, directory)
    without = make_learner(directory, layout, lora={"enabled": False}).config
    with pytest.raises(Exception, match="asks for no adapters"):
        check_same_model(saved, without, directory)


HINTED = [
    msgspec.msgpack.encode(msgspec.structs.replace(sample, hinted_prompt_ids=sample.prompt_ids))
    for sample in (make_sample(turn) for turn in range(2))
]


def test_the_first_weights_are_the_student_with_adapters_off(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(
        student(),
        layout,
        prm={"teacher_source": "trainer"},
        training={"kl_coef": 0.1, "force_kl": True},
    )
    before = forced.teach(learner, HINTED, 0)
    train(learner)
    after = forced.teach(learner, HINTED, 0)
    for turn, found in before.items():
        assert after[turn].logprobs.tolist() == found.logprobs.tolist()
    assert learner.reference is not None
    with learner.reference.policy() as (network, _):
        assert network is learner.model
    assert learner.own_teacher is not None and not hasattr(learner.own_teacher, "network")


def test_the_moving_average_is_of_the_adapters(student: Callable[..., Path], layout: Layout) -> None:
    teacher = {"teacher_source": "trainer", "teacher_weights": "ema", "ema_decay": 0.75}
    learner = make_learner(student(), layout, prm=teacher)
    (first, *_) = lora.adapters(learner.model)
    before = first.lora_a.detach().clone()
    train(learner, 1)
    moved, trained = first.lora_a.detach().clone(), learner.score(IDS)
    assert learner.own_teacher is not None
    with learner.own_teacher.in_force():
        torch.testing.assert_close(first.lora_a.detach(), before.lerp(moved, 0.25))
        assert learner.score(IDS) != trained
    assert learner.score(IDS) == trained


def test_bfloat16_adapters_are_trained_in_float32(student: Callable[..., Path], layout: Layout) -> None:
    learner = make_learner(student(), layout, model={"dtype": "bfloat16"}, training={"learning_rate": 1e-5})
    (first, *_) = lora.adapters(learner.model)
    assert first.lora_a.dtype == torch.bfloat16 and first.lora_a.main_grad.dtype == torch.float32
    before = first.lora_a.main_param.clone()
    train(learner)
    # AdamW moves A by about the learning rate a step, far below what bfloat16 can tell.
    moved = float((first.lora_a.main_param - before).abs().max())
    assert 5e-6 < moved < 3e-5


def test_of_a_mixture_attention_alone_gets_adapters(
    student: Callable[..., Path], layout: Layout, tmp_path: Path
) -> None:
    directory = student("qwen3_moe", tied=False)
    with pytest.raises(ModelError, match="gate_proj, up_proj of a mixture of experts are not supported"):
        make_learner(directory, layout)
    learner = make_learner(directory, layout, lora={"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]})
    train(learner)
    learner.export(tmp_path / "adapter")
    assert scores(with_peft(directory, tmp_path / "adapter")) == pytest.approx(learner.score(IDS), abs=1e-5)


def test_a_rank_that_is_not_low_is_refused(student: Callable[..., Path], layout: Layout) -> None:
    with pytest.raises(ModelError, match=r"lora.rank 80 is above 64, .* self_attn.q_proj"):
        make_learner(student(), layout, lora={"rank": 80})
    make_learner(student(), layout, lora={"rank": 64})
