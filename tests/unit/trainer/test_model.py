from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import cpu, export, model, weights
from hintloop_trainer.megatron.parallel import Layout
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

VARIANTS = [(family, tied) for family in ("llama", "qwen2", "qwen3", "qwen3_moe") for tied in (True, False)]


def build(directory: Path, layout: Layout) -> tuple[model.PolicyModel, model.Architecture]:
    arch = model.read_architecture(directory)
    built = model.build(arch, layout, torch.float32, 64)
    weights.load(built, arch, layout, directory)
    return built, arch


@torch.no_grad()
def logits(built: model.PolicyModel, ids_bs: torch.Tensor) -> torch.Tensor:
    num, length = ids_bs.shape
    with cpu.quietly():
        hidden = built(ids_bs, torch.arange(length).expand(num, -1), None)
        return built.head(hidden.transpose(0, 1).flatten(0, 1)).view(num, length, -1)


@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_logits_equal_transformers(student: Callable[..., Path], layout: Layout, family: str, tied: bool) -> None:
    directory = student(family, tied=tied)
    built, arch = build(directory, layout)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.randint(0, arch.vocab_size, (2, 23), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        expected = reference(ids).logits
    assert (logits(built, ids) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 50_000.0},
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
)
def test_rotary_settings_are_applied(student: Callable[..., Path], layout: Layout, rope: dict[str, object]) -> None:
    directory = student("llama", rope_parameters=rope)
    built, arch = build(directory, layout)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.randint(0, arch.vocab_size, (1, 60), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        expected = reference(ids).logits
    assert (logits(built, ids) - expected).abs().max() < 1e-5


@torch.no_grad()
def test_experts_are_weighed_as_the_configuration_says(student: Callable[..., Path], layout: Layout) -> None:
    """Without `norm_topk_prob`, a token's weights of its experts are the router's probabilities and sum to less."""
    directory = student("qwen3_moe", norm_topk_prob=False, num_experts_per_tok=1)
    built, arch = build(directory, layout)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.randint(0, arch.vocab_size, (2, 23), generator=torch.Generator().manual_seed(4))
    assert (logits(built, ids) - reference(ids).logits).abs().max() < 1e-5


def test_experts_stacked_in_one_tensor_are_read(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    """transformers can write its own form, and reads the form of one matrix an expert that is exported."""
    directory, stacked = student("qwen3_moe"), tmp_path / "stacked"
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    reference.save_pretrained(stacked, save_original_format=False)
    names = load_file(stacked / "model.safetensors").keys()
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    built, arch = build(stacked, layout)
    target = tmp_path / "out"
    export.write_weights(built, arch, layout, base=directory, tokenizer=directory, target=target)
    after = load_file(target / "model.safetensors")
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in after
    assert all(torch.equal(value, after[name]) for name, value in load_file(directory / "model.safetensors").items())
    again = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert all(torch.equal(one, two) for one, two in zip(reference.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("family", "tied"), VARIANTS)
def test_weights_come_out_as_they_went_in(
    student: Callable[..., Path], layout: Layout, tmp_path: Path, family: str, tied: bool
) -> None:
    directory = student(family, tied=tied)
    built, arch = build(directory, layout)
    target = tmp_path / "out"
    digest = export.write_weights(built, arch, layout, base=directory, tokenizer=directory, target=target)
    before, after = load_file(directory / "model.safetensors"), load_file(target / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = export.write_weights(built, arch, layout, base=directory, tokenizer=directory, target=tmp_path / "two")
    assert digest == again
    assert json.loads((target / "config.json").read_text())["dtype"] == "float32"
    assert not list(tmp_path.glob(".*partial"))


def test_other_weights_have_another_digest(student: Callable[..., Path], layout: Layout, tmp_path: Path) -> None:
    directory = student()
    built, arch = build(directory, layout)
    one = export.write_weights(built, arch, layout, base=directory, tokenizer=directory, target=tmp_path / "1")
    with torch.no_grad():
        next(built.parameters()).view(-1)[0] += 1e-3
    two = export.write_weights(built, arch, layout, base=directory, tokenizer=directory, target=tmp_path / "2")
    assert one != two


@pytest.mark.parametrize("cut", list(weights.Cut))
@pytest.mark.parametrize("tp_size", [1, 2])
def test_shards_join_to_the_full_tensor(student: Callable[..., Path], cut: weights.Cut, tp_size: int) -> None:
    arch = model.read_architecture(student("qwen3"))
    rows = {weights.Cut.VOCAB: arch.vocab_size, weights.Cut.GROUPS: (arch.num_heads + 4) * arch.head_dim}.get(cut, 24)
    full = torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))
    shards = [weights.shard(full, cut, arch, rank, tp_size) for rank in range(tp_size)]
    assert len({shard.shape for shard in shards}) == 1
    joined = weights.unshard(shards, cut)
    assert torch.equal(joined[:rows], full)
    if cut is weights.Cut.GROUPS:
        parts = weights.part(full, cut, arch)
        assert [part.shape[0] // arch.head_dim for part in parts] == [4, 2, 2]
        assert torch.equal(weights.join(parts, cut, arch), full)


def layout_of(tp: int = 1, pp: int = 1, **others: int) -> Layout:
    ranks = {"rank": 0, "dp_rank": 0, "tp_rank": 0, "pp_rank": 0}
    return Layout(world_size=tp * pp, dp_size=1, tp_size=tp, pp_size=pp, **ranks, **others)


@pytest.mark.parametrize(
    ("tp", "pp", "changes", "message"),
    [
        (3, 1, {}, "tensor_model_parallel_size 3 does not divide the student's 4 attention heads"),
        (4, 1, {}, "2 key-value groups"),
        (2, 1, {"ffn_size": 97}, "intermediate_size 97"),
        (1, 3, {}, "pipeline_model_parallel_size 3 does not divide the student's 2 layers"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(
    student: Callable[..., Path], tp: int, pp: int, changes: dict[str, int], message: str
) -> None:
    arch = dataclasses.replace(model.read_architecture(student("qwen3")), **changes)
    with pytest.raises(ModelError, match=message):
        model.check_layout(arch, layout_of(tp, pp))


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("qwen3_moe", {"ep_size": 3}, "expert_model_parallel_size 3 does not divide the student's 4 expert"),
        ("qwen3", {"ep_size": 2}, r"expert_model_parallel_size 2 does not divide the student's 1 expert"),
        ("qwen3_moe", {"tp": 2}, "set training.sequence_parallel = true"),
        ("qwen3_moe", {"tp": 2, "sequence_parallel": True}, "set training.expert_model_parallel_size = 2"),
        ("qwen3", {"cp_size": 2}, "context_parallel_size 2 needs the attention of Transformer Engine"),
    ],
)
def test_what_this_model_or_machine_cannot_divide_is_refused(
    student: Callable[..., Path], family: str, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        model.check_layout(model.read_architecture(student(family)), layout_of(**sizes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2", "n_embd": 8}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_only_layers": [0]}, "a dense layer among those with experts"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'dynamic'"),
    ],
)
def test_unsupported_models_are_refused(student: Callable[..., Path], changes: dict[str, object], message: str) -> None:
    directory = student("llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=message):
        model.read_architecture(directory)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        model.read_architecture(tmp_path)


def gradients(built: model.PolicyModel, arch: model.Architecture, layout: Layout) -> dict[str, torch.Tensor]:
    """The gradient by Hugging Face's names."""
    found: dict[str, torch.Tensor] = {}
    for parameter in built.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.grad
    weights.export_tensors(built, arch, layout, found.__setitem__)
    return found


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_gradients_equal_transformers(student: Callable[..., Path], layout: Layout, family: str) -> None:
    directory = student(family, tied=False)
    built, arch = build(directory, layout)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.randint(0, arch.vocab_size, (2, 23), generator=torch.Generator().manual_seed(4))
    weighing = torch.randn(2, 23, arch.vocab_size, generator=torch.Generator().manual_seed(5))
    (reference(ids).logits.log_softmax(-1) * weighing).sum().backward()
    positions = torch.arange(23).expand(2, -1)
    with cpu.quietly():
        hidden = built(ids, positions, None)
        logits_BSV = built.head(hidden.transpose(0, 1).flatten(0, 1)).view(2, 23, -1)
    (logits_BSV.log_softmax(-1) * weighing).sum().backward()
    found = gradients(built, arch, layout)
    for name, parameter in reference.named_parameters():
        assert parameter.grad is not None
        for part, expected in parts_of(name, parameter.grad).items():
            assert (found[part] - expected).abs().max() < 1e-5 * expected.abs().max() + 1e-6, part


def parts_of(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What transformers stacks in one tensor, expert by expert."""
    base = name.rpartition(".")[0]
    if name.endswith("experts.down_proj"):
        return {f"{base}.{number}.down_proj.weight": value for number, value in enumerate(tensor)}
    if not name.endswith("experts.gate_up_proj"):
        return {name: tensor}
    halves = {"gate_proj": 0, "up_proj": 1}
    return {
        f"{base}.{number}.{part}.weight": value.chunk(2)[half]
        for number, value in enumerate(tensor)
        for part, half in halves.items()
    }
