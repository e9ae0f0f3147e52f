"""Releases held back, and the way back after the gate's patience. Answers are scripted, but for the last test."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.messages import Sample
from hintloop_trainer import checkpoints
from hintloop_trainer.points import Point
from safetensors.torch import load_file

from .conftest import Bench, run
from .scripted_gate import drops, gate, released, same, samples_left, stop_when, weights

MakeSample = Callable[..., Sample]


def test_what_is_held_back_serves_nobody_and_training_goes_on(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    scripted = gate(bench, [True, False, True])
    progress, _ = bench.train(bench.config(), gate=scripted)
    assert (progress.step, progress.num_trained, progress.holds) == (2, 4, 0)
    # Version 2 was held back: its number is used, its files are gone, and version 3 descends from 1.
    assert run(bench, bench.broker.weights()) == WeightsState(current=3, updating=None)
    assert [released.version for released in progress.lineage.versions] == [1, 3]
    assert not (bench.folder / "weights" / "2").exists()
    assert run(bench, bench.broker.version_notes(2))["held"].startswith("step 1 is held back: answer_rate 0.000")
    assert run(bench, bench.broker.version_notes(3))["parent"] == "1"
    held, passed = bench.metrics()
    assert (held["version"], held["gate_held"], held["gate_holds"], held["gate_base_nll"]) == (1, 1, 1, 9.0)
    assert (passed["version"], passed["gate_held"], passed["gate_holds"], passed["gate_answer_rate"]) == (3, 0, 0, 1.0)
    assert samples_left(bench) == 0
    assert drops(bench) == {}


def test_after_its_patience_the_trainer_is_back_at_the_last_release(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(8)])
    scripted = gate(bench, [True, True, False, False, True])
    # Six samples in steps 1 to 3, of which two steps are given up; the last two make step 2.
    stop = stop_when(bench, released(bench, 5))
    progress, _ = bench.train(bench.config(training={"max_steps": 9}), gate=scripted, stop=stop)
    assert (progress.step, progress.num_trained, progress.alarm) == (2, 4, "")
    assert drops(bench) == {("train", "gate_rejected"): 4}
    assert samples_left(bench) == 0
    assert run(bench, bench.broker.untrained()) == 0
    assert [line["step"] for line in bench.metrics()] == [1, 2, 3, 2]
    state = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    assert state.trained_turn_ids == ["turn-0000", "turn-0001", "turn-0006", "turn-0007"]


def test_weights_optimizer_and_generators_are_those_of_the_release(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in (0, 1, 20, 21, 22, 23, 2, 3)])
    scripted = gate(bench, [True, True, False, False, True])
    stop = stop_when(bench, released(bench, 5))
    bench.train(bench.config(training={"max_steps": 9}), gate=scripted, stop=stop)
    with_detour = weights(bench, "current")
    elsewhere = {"checkpoint_dir": bench.folder / "other", "max_steps": 2}
    later = [make_sample(turn, turn_id=f"again-{turn}", version_oldest=6, version_newest=6) for turn in range(4)]
    bench.feed(later)
    config = bench.config(training=elsewhere, publishing={"weights_dir": bench.folder / "other-weights"})
    bench.train(config, gate=gate(bench, []))
    straight = load_file(bench.folder / "other-weights" / "current" / "model.safetensors")
    assert same(with_detour, straight)


def test_a_death_among_the_rejections_neither_trains_nor_drops_a_sample_twice(
    bench: Bench, make_sample: MakeSample
) -> None:
    bench.feed([make_sample(turn) for turn in range(8)])

    class Died(BaseException):
        pass

    def die(point: Point) -> None:
        if point == Point.RESTORED:
            raise Died

    config = bench.config(training={"max_steps": 9, "save_interval": 1}, redis={"claim_idle_ms": 1000})
    with pytest.raises(Died):
        bench.train(config, gate=gate(bench, [True, True, False, False]), reached=die)
    # Step 1 is in a checkpoint; what was given up is pending still.
    assert (samples_left(bench), drops(bench)) == (6, {})
    progress, _ = bench.train(
        bench.config(redis={"claim_idle_ms": 1000}, training={"max_steps": 3}), gate=gate(bench, [])
    )
    assert (progress.step, progress.num_trained) == (4, 8)
    assert (samples_left(bench), drops(bench)) == (0, {})


def test_asked_to_end_with_a_release_held_back_it_leaves_only_released_weights(
    bench: Bench, make_sample: MakeSample
) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    progress, _ = bench.train(bench.config(), gate=gate(bench, [True, True, False]))
    assert (progress.step, progress.num_trained) == (1, 2)
    state = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    assert (state.step, state.trained_turn_ids) == (1, ["turn-0000", "turn-0001"])
    assert (samples_left(bench), drops(bench)) == (2, {})
    progress, _ = bench.train(
        bench.config(training={"max_steps": 1}, redis={"claim_idle_ms": 1000}), gate=gate(bench, [])
    )
    assert (progress.step, progress.num_trained) == (2, 4)


def test_a_learning_rate_that_destroys_the_weights_is_held_back_and_undone(
    bench: Bench, make_sample: MakeSample
) -> None:
    """The real thing: a tiny model answers for itself, in the process that does so elsewhere."""
    probes = bench.folder / "probes.jsonl"
    probes.write_text("\n".join(json.dumps({"prompt_ids": [5 + number, 9, 11]}) for number in range(16)))
    bench.feed([make_sample(turn) for turn in range(4)])
    config = bench.config(
        training={"max_steps": 9, "learning_rate": 3.0},
        rollout={"temperature": 1.0},
        gate={"enabled": True, "probe_file": probes, "max_new_tokens": 12},
    )
    stop = stop_when(bench, rejected(bench, 4), timeout_s=120)
    progress, _ = bench.train(config, stop=stop)
    assert (progress.step, progress.num_trained) == (0, 0)
    assert drops(bench) == {("train", "gate_rejected"): 4}
    assert run(bench, bench.broker.weights()) == WeightsState(current=1, updating=None)
    assert [line["gate_held"] for line in bench.metrics()] == [1, 1]
    assert "back at step 0 from step 2" in progress.alarm
    assert "gate." in progress.alarm
    assert same(weights(bench, 1), load_file(bench.folder / "student" / "model.safetensors"))


def rejected(bench: Bench, number: int) -> Callable[[], Awaitable[bool]]:
    async def are_rejected() -> bool:
        return (await bench.broker.funnel()).drops.get(("train", "gate_rejected"), 0) >= number

    return are_rejected
