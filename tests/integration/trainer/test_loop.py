from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Sample, Sampling
from hintloop_contract.streams import SAMPLES
from hintloop_contract.tensors import pack, unpack
from hintloop_trainer import checkpoints
from safetensors.torch import load_file

from .conftest import Bench, run
from .scripted_gate import acknowledged, holding, stop_when


def weights(bench: Bench, version: int) -> dict[str, torch.Tensor]:
    return load_file(bench.folder / "weights" / str(version) / "model.safetensors")


def differs(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == two.keys()
    return any(not torch.equal(one[name], two[name]) for name in one)


def test_two_steps_change_the_weights_and_say_so(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    progress, _ = bench.train(bench.config())

    assert (progress.step, progress.num_trained) == (2, 4)
    assert run(bench, bench.broker.weights()) == WeightsState(current=3, updating=None)
    assert (bench.folder / "weights" / "current").resolve().name == "3"
    assert differs(weights(bench, 2), weights(bench, 3))
    # Two versions are kept; the base weights are gone.
    assert sorted(path.name for path in (bench.folder / "weights").glob("[0-9]*")) == ["2", "3"]

    funnel = run(bench, bench.broker.funnel())
    assert (funnel.steps["batched"], funnel.steps["trained"]) == (4, 4)
    lines = [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["ratio_mean"] == 1.0
    assert lines[0]["clip_fraction"] == 0.0
    assert lines[0]["effective_learning_rate"] == 1e-3
    assert lines[1]["staleness_max"] == 1
    status = run(bench, bench.broker.get_status("trainer"))
    assert status["phase"] == "stopped"
    assert status["step"] == "2"


def test_what_the_teacher_said_of_every_token_is_kept_when_asked(
    bench: Bench, make_sample: Callable[..., Sample]
) -> None:
    samples = {sample.turn_id: sample for sample in (make_sample(turn) for turn in range(4))}
    bench.feed(list(samples.values()))
    bench.train(bench.config(opd={"log_teacher_logprobs": True}))

    lines = [json.loads(line) for line in (bench.folder / "teacher_logprobs.jsonl").read_text().splitlines()]
    assert {line["turn_id"] for line in lines} == samples.keys()
    assert {line["step"] for line in lines} == {1, 2}
    for line in lines:
        sample = samples[line["turn_id"]]
        assert sample.teacher_logprobs is not None
        assert line["response_ids"] == unpack(sample.response_ids).tolist()
        assert line["teacher_logprobs"] == pytest.approx(unpack(sample.teacher_logprobs).tolist())
        differences = [t - old for t, old in zip(line["teacher_logprobs"], line["old_logprobs"], strict=True)]
        assert line["advantages"] == pytest.approx([min(5.0, max(-5.0, d)) for d in differences], abs=1e-6)


def test_nothing_is_kept_when_not_asked(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    bench.train(bench.config())
    assert not (bench.folder / "teacher_logprobs.jsonl").exists()


def test_samples_are_acknowledged_with_the_checkpoint_only(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(6)])
    seen: list[tuple[int, int, int]] = []
    begin, finish = checkpoints.CheckpointStore.begin, checkpoints.CheckpointStore.finish
    lengths: dict[int, int] = {}

    def begun(store: checkpoints.CheckpointStore, state: checkpoints.TrainerState, exported: Any) -> None:
        begin(store, state, exported)
        lengths[state.step] = run(bench, bench.broker.counts(SAMPLES)).length
        seen.append((state.step, lengths[state.step], len(state.trained_turn_ids)))

    def finished(store: checkpoints.CheckpointStore) -> Any:
        path = finish(store)
        if path is not None:
            # Meanwhile nothing was acknowledged.
            step = checkpoints.read_state(path).step
            assert run(bench, bench.broker.counts(SAMPLES)).length == lengths[step]
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints.CheckpointStore, "begin", begun)
        patch.setattr(checkpoints.CheckpointStore, "finish", finished)
        bench.train(bench.config(training={"max_steps": 3, "save_interval": 2}))
    # At the second step nothing was acknowledged yet; the clean exit saves the third.
    assert seen == [(2, 6, 4), (3, 2, 6)]
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0
    assert run(bench, bench.broker.untrained()) == 0


def test_what_a_checkpoint_holds_is_acknowledged_later_and_not_trained_again(
    bench: Bench, make_sample: Callable[..., Sample]
) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    config = bench.config(training={"max_steps": 1}, redis={"claim_idle_ms": 1000})
    with pytest.MonkeyPatch.context() as patch:

        async def away(*arguments: object) -> int:
            raise DependencyError("redis", "cut off")

        patch.setattr(type(bench.broker), "finish", away)
        bench.train(config)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2

    progress, _ = bench.train(config, stop=stop_when(bench, acknowledged(bench)))
    assert (progress.step, progress.num_trained) == (1, 2)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0
    assert run(bench, bench.broker.funnel()).steps["trained"] == 2


@pytest.fixture
def resumed(bench: Bench, make_sample: Callable[..., Sample]) -> Iterator[Bench]:
    """A trainer that made one step of turns 0 and 1, and ended."""
    bench.feed([make_sample(turn) for turn in range(2)])
    bench.train(bench.config(training={"max_steps": 1}))
    yield bench


def test_a_restart_goes_on_from_the_checkpoint(resumed: Bench, make_sample: Callable[..., Sample]) -> None:
    resumed.feed([make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)])
    progress, _ = resumed.train(resumed.config(training={"max_steps": 1}))
    # Version 3 is the checkpoint's weights under a new number.
    assert [released.version for released in progress.lineage.versions] == [1, 2, 3, 4]
    assert (progress.step, progress.num_trained) == (2, 4)


def test_a_resumed_step_equals_the_uninterrupted_one(resumed: Bench, make_sample: Callable[..., Sample]) -> None:
    after = [make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)]
    resumed.feed(after)
    resumed.train(resumed.config(training={"max_steps": 1}))
    broken = weights(resumed, 4)

    elsewhere = {"checkpoint_dir": resumed.folder / "other", "max_steps": 2}
    whole = resumed.config(training=elsewhere, publishing={"weights_dir": resumed.folder / "other-weights"})
    first = [make_sample(turn, turn_id=f"again-{turn}", version_oldest=5, version_newest=5) for turn in range(2)]
    second = [make_sample(turn, turn_id=f"again-{turn}", version_oldest=5, version_newest=5) for turn in (10, 11)]
    resumed.feed([*first, *second])
    resumed.train(whole)
    straight = load_file(resumed.folder / "other-weights" / "7" / "model.safetensors")
    for name, tensor in straight.items():
        torch.testing.assert_close(tensor, broken[name], rtol=0, atol=1e-7)


def test_samples_that_may_not_be_trained_drop_with_their_reason(
    bench: Bench, make_sample: Callable[..., Sample]
) -> None:
    bench.feed(
        [
            make_sample(0, version_oldest=99, version_newest=99),
            make_sample(1, version_oldest=1, version_newest=99),
            make_sample(2, num_prompt=80),
            make_sample(3, teacher_logprobs=None),
            make_sample(4, teacher_logprobs=None, hint=None),
            make_sample(5, sampling=Sampling(constrained=True)),
            make_sample(6, response_ids=pack([1, 2, 3], "int32")),
            make_sample(7),
            make_sample(8),
        ]
    )
    bench.train(bench.config(training={"max_steps": 1, "allow_constrained": False}))
    drops = run(bench, bench.broker.funnel()).drops
    assert drops == {
        ("train", "orphan_version"): 2,
        ("train", "too_long"): 1,
        ("train", "teacher_missing"): 1,
        ("train", "no_hint"): 1,
        ("train", "constrained"): 1,
        ("train", "dead"): 1,
    }


def test_old_samples_drop_as_stale_and_mixed_ones_as_mixed(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    bench.train(bench.config())
    # Versions 1 to 3 are ancestors; the restart releases 4 with step 2's weights.
    bench.feed(
        [
            make_sample(20),
            make_sample(21, version_oldest=2, version_newest=3),
            make_sample(22, version_oldest=2, version_newest=2),
            make_sample(23, version_oldest=3, version_newest=3),
        ]
    )
    progress, _ = bench.train(bench.config(training={"max_steps": 1, "max_staleness_steps": 1}))
    assert progress.step == 3
    drops = run(bench, bench.broker.funnel()).drops
    assert drops == {("train", "stale"): 1, ("train", "mixed_version"): 1}


def test_two_steps_a_collection_move_the_ratio(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    bench.train(bench.config(rollout={"rollout_batch_size": 4}))
    lines = [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert lines[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert abs(lines[1]["ratio_mean"] - 1.0) > 1e-4


def test_asked_to_stop_it_gives_back_what_it_held(bench: Bench, make_sample: Callable[..., Sample]) -> None:
    bench.feed([make_sample(0)])
    progress, _ = bench.train(bench.config(), stop=stop_when(bench, holding(bench, 1)))
    assert progress.step == 0
    entries = run(bench, bench.broker.claim(SAMPLES, "another", 10, 60_000))
    assert [entry.turn_id for entry in entries] == ["turn-0000"]
