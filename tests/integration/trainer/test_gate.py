"""Releases held back, the way back after the gate's patience, and operators' rollbacks. Answers are scripted here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hintloop_contract.broker import WeightsState
from hintloop_contract.config.gate import GateSection
from hintloop_contract.control import Command, ControlRequest, Pause
from hintloop_contract.messages import Sample
from hintloop_contract.streams import SAMPLES
from hintloop_trainer import checkpoints
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.messages import Answer
from hintloop_trainer.gate.probes import Probe
from hintloop_trainer.points import Point
from hintloop_trainer.publish.release import Release
from safetensors.torch import load_file

from .conftest import Bench, run

MakeSample = Callable[..., Sample]
NUM_PROBES = 8


class Scripted:
    """Answers as told for each look in turn; good ones when nothing is told."""

    def __init__(self, good: list[bool]) -> None:
        self.good = good
        self.looked: list[int] = []

    async def look(self, candidate: Release) -> list[Answer]:
        assert (candidate.directory / "model.safetensors").is_file()
        self.looked.append(candidate.version)
        good = self.good.pop(0) if self.good else True
        ids = [5, 6, 7, 8, 2] if good else [5] * 5
        return [
            Answer(token_ids=ids, ended=good, text="", entropy=2.0, base_nll=1.0 if good else 9.0)
            for _ in range(NUM_PROBES)
        ]

    async def close(self) -> None:
        return None


def gate(bench: Bench, good: list[bool]) -> Gate:
    probes = [Probe((), (1,)) for _ in range(NUM_PROBES)]
    return Gate(GateSection(), probes, Scripted(good), bench.folder / "student")


def weights(bench: Bench, version: int | str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(bench.folder / "weights" / str(version) / "model.safetensors")
    return found


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


def metrics(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]


def samples_left(bench: Bench) -> int:
    return int(run(bench, bench.broker.counts(SAMPLES)).length)


def drops(bench: Bench) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = run(bench, bench.broker.funnel()).drops
    return found


def stop_when(bench: Bench, condition: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> threading.Event:
    """An event that is set once the condition holds, or after the time."""
    stop = threading.Event()

    async def watch() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not await condition():
                    await asyncio.sleep(0.05)
        stop.set()

    bench.background.submit(watch())
    return stop


def released(bench: Bench, version: int) -> Callable[[], Awaitable[bool]]:
    async def is_current() -> bool:
        return (await bench.broker.weights()).current == version

    return is_current


async def never() -> bool:
    return False


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
    held, passed = metrics(bench)
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
    assert [line["step"] for line in metrics(bench)] == [1, 2, 3, 2]
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


def ask(bench: Bench, request: ControlRequest) -> str:
    request_id: str = run(bench, bench.broker.ask_control(request))
    return request_id


def outcome(bench: Bench, request_id: str) -> Any:
    return run(bench, bench.broker.control_outcome(request_id))


def settled(bench: Bench, request_id: str) -> Callable[[], Awaitable[bool]]:
    async def is_settled() -> bool:
        found = await bench.broker.control_outcome(request_id)
        return found is not None and found.state != "accepted"

    return is_settled


@pytest.fixture
def trained(bench: Bench, make_sample: MakeSample) -> Bench:
    """Versions 1 (base), 2, 3 and 4; every one is kept, checkpoints are those of steps 2 and 3."""
    bench.feed([make_sample(turn) for turn in range(6)])
    bench.train(rollback_config(bench, max_steps=3))
    return bench


def rollback_config(bench: Bench, **training: Any) -> Any:
    return bench.config(
        training={"save_interval": 1, "max_steps": 1, **training},
        publishing={"keep_versions": 20},
        redis={"claim_idle_ms": 1000},
    )


@pytest.mark.parametrize(("version", "state"), [(3, "weights and optimizer"), (2, "weights alone")])
def test_a_rollback_serves_an_earlier_version_and_pauses(trained: Bench, version: int, state: str) -> None:
    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=version))
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    found = outcome(trained, asked)
    assert (found.state, found.version) == ("done", 5)
    assert state in found.detail
    assert same(weights(trained, version), weights(trained, 5))
    assert run(trained, trained.broker.weights()).current == 5
    assert [released.version for released in progress.lineage.versions] == [*range(1, version + 1), 5]
    assert progress.step == version - 1
    assert run(trained, trained.broker.paused()).reason == f"rolled back to version {version}"
    # A restart would take the newest checkpoint.
    newest = checkpoints.read_state(checkpoints.complete(trained.folder / "checkpoints")[-1])
    assert (newest.step, newest.lineage.current) == (version - 1, version)


def test_a_pause_outlives_the_trainer_and_ends_when_asked(trained: Bench, make_sample: MakeSample) -> None:
    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=3))
    trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    # One made by a version that is no ancestor any more, and two by one that is.
    trained.feed([make_sample(30, version_oldest=4, version_newest=4)])
    trained.feed([make_sample(turn, version_oldest=3, version_newest=3) for turn in (31, 32)])
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, never, timeout_s=1.5))
    assert progress.step == 2
    assert trained.background.run(trained.broker.get_status("trainer"))["paused"] == "rolled back to version 3"
    assert samples_left(trained) == 3
    resumed = ask(trained, ControlRequest(command=Command.RESUME))
    progress, _ = trained.train(rollback_config(trained))
    assert outcome(trained, resumed).state == "done"
    assert run(trained, trained.broker.paused()) is None
    assert progress.step == 3
    assert drops(trained) == {("train", "orphan_version"): 1}


def test_a_death_in_a_rollback_ends_in_the_same_place(trained: Bench) -> None:
    class Died(BaseException):
        pass

    def die(point: Point) -> None:
        if point == Point.ROLLED_BACK:
            raise Died

    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=2))
    with pytest.raises(Died):
        trained.train(rollback_config(trained), reached=die)
    assert outcome(trained, asked).state == "accepted"
    trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    found = outcome(trained, asked)
    assert found.state == "done"
    assert same(weights(trained, 2), weights(trained, found.version))
    assert isinstance(run(trained, trained.broker.paused()), Pause)


def test_what_cannot_be_done_is_refused_and_changes_nothing(trained: Bench) -> None:
    asked = [
        ask(trained, ControlRequest(command=Command.ROLLBACK, version=99)),
        ask(trained, ControlRequest(command=Command.RESUME)),
        ask(trained, ControlRequest(command="dance")),
    ]
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked[-1])))
    found = [outcome(trained, request_id) for request_id in asked]
    assert [one.state for one in found] == ["refused"] * 3
    assert "version 99 is not kept; those that can be gone back to are: 4, 3, 2, 1" in found[0].detail
    assert found[1].detail == "training is not paused"
    assert "no command 'dance'" in found[2].detail
    assert progress.step == 3
    assert run(trained, trained.broker.paused()) is None


def test_a_request_that_ends_the_trainer_again_and_again_is_refused(trained: Bench) -> None:
    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=2))
    assert run(trained, trained.broker.accept_control(asked, "3"))
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    assert outcome(trained, asked).state == "refused"
    assert "ended over it 3 times" in outcome(trained, asked).detail
    assert progress.step == 3


def test_a_rollback_asked_for_within_a_collection_gives_the_rest_back(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    asked: list[str] = []

    def ask_after_a_step(point: Point) -> None:
        if point == Point.PUBLISHED and not asked and run(bench, bench.broker.weights()).current == 2:
            asked.append(ask(bench, ControlRequest(command=Command.ROLLBACK, version=1)))

    config = bench.config(
        rollout={"rollout_batch_size": 4}, training={"max_steps": 9}, publishing={"keep_versions": 20}
    )

    async def done() -> bool:
        return bool(asked) and await settled(bench, asked[0])()

    stop = stop_when(bench, done)
    progress, _ = bench.train(config, reached=ask_after_a_step, stop=stop)
    assert (progress.step, progress.num_trained) == (0, 0)
    # All four may be trained: two were in weights that are given up, two were never trained.
    assert (samples_left(bench), drops(bench)) == (4, {})
    assert same(weights(bench, 1), weights(bench, 3))
    assert Path(bench.folder / "weights" / "current").resolve().name == "3"


def test_what_a_version_without_a_checkpoint_holds_is_not_trained_again(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(6)])
    asked: list[str] = []

    def ask_after_two_steps(point: Point) -> None:
        if point == Point.PUBLISHED and not asked and run(bench, bench.broker.weights()).current == 3:
            asked.append(ask(bench, ControlRequest(command=Command.ROLLBACK, version=2)))

    async def done() -> bool:
        return bool(asked) and await settled(bench, asked[0])()

    config = bench.config(training={"max_steps": 9}, publishing={"keep_versions": 20})
    progress, _ = bench.train(config, reached=ask_after_two_steps, stop=stop_when(bench, done))
    assert (progress.step, progress.num_trained) == (1, 2)
    state = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    # Both samples of step 1 are in version 2; those of step 2 and the last two may be trained.
    assert (state.step, state.trained_turn_ids) == (1, ["turn-0000", "turn-0001"])
    assert (samples_left(bench), drops(bench)) == (4, {})


def test_nor_is_it_after_a_death_that_left_no_checkpoint(bench: Bench, make_sample: MakeSample) -> None:
    class Died(BaseException):
        pass

    def die(point: Point) -> None:
        if point == Point.PUBLISHED and run(bench, bench.broker.weights()).current == 3:
            raise Died

    bench.feed([make_sample(turn) for turn in range(6)])
    config = bench.config(training={"max_steps": 9}, publishing={"keep_versions": 20}, redis={"claim_idle_ms": 1000})
    with pytest.raises(Died):
        bench.train(config, reached=die)
    assert checkpoints.complete(bench.folder / "checkpoints") == []
    asked = ask(bench, ControlRequest(command=Command.ROLLBACK, version=2))
    resumed: list[str] = []

    async def back() -> bool:
        if not resumed and await settled(bench, asked)():
            resumed.append(await bench.broker.ask_control(ControlRequest(command=Command.RESUME)))
        return (await bench.broker.get_status("trainer")).get("trained") == "6"

    progress, _ = bench.train(config, stop=stop_when(bench, back))
    assert (progress.step, progress.num_trained) == (3, 6)
    state = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    assert state.trained_turn_ids == [f"turn-{turn:04d}" for turn in range(6)]
    assert (samples_left(bench), drops(bench)) == (0, {})


def test_the_state_a_restart_began_with_has_its_optimizer(trained: Bench, make_sample: MakeSample) -> None:
    trained.feed([make_sample(turn, version_oldest=4, version_newest=4) for turn in (6, 7)])
    asked: list[str] = []

    def ask_after_a_step(point: Point) -> None:
        if point == Point.PUBLISHED and not asked and run(trained, trained.broker.weights()).current == 6:
            asked.append(ask(trained, ControlRequest(command=Command.ROLLBACK, version=5)))

    async def done() -> bool:
        return bool(asked) and await settled(trained, asked[0])()

    config = rollback_config(trained, max_steps=9)
    progress, _ = trained.train(config, reached=ask_after_a_step, stop=stop_when(trained, done))
    # Version 5 is the state of version 4, which the last checkpoint before the restart is of.
    assert "weights and optimizer" in outcome(trained, asked[0]).detail
    assert [released.version for released in progress.lineage.versions] == [1, 2, 3, 4, 5, 7]
    assert same(weights(trained, 4), weights(trained, 7))


def test_a_version_that_redis_forgot_is_not_gone_back_to(trained: Bench) -> None:
    # Its step is not known, and whatever it was taken for, samples would be let in or dropped by it.
    shutil.copytree(trained.folder / "weights" / "2", trained.folder / "weights" / "50")
    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=50))
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    assert (outcome(trained, asked).state, progress.step) == ("refused", 3)
    assert "which step version 50 is" in outcome(trained, asked).detail


def test_weights_held_back_after_a_rollback_are_not_saved(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(8)])
    asked: list[str] = []

    def ask_after_two_steps(point: Point) -> None:
        if point == Point.PUBLISHED and not asked and run(bench, bench.broker.weights()).current == 3:
            asked.append(ask(bench, ControlRequest(command=Command.ROLLBACK, version=1)))
            ask(bench, ControlRequest(command=Command.RESUME))

    async def held_back() -> bool:
        return (await bench.broker.get_status("trainer")).get("gate_holds", "0") != "0"

    config = bench.config(
        training={"max_steps": 9}, publishing={"keep_versions": 20}, gate={"patience": 9, "enabled": False}
    )
    # Versions 1 to 3 and the one after the rollback pass; step 1 and what follows anew do not, though 2 passed before.
    scripted = gate(bench, [True, True, True, True, *[False] * 9])
    progress, _ = bench.train(config, gate=scripted, reached=ask_after_two_steps, stop=stop_when(bench, held_back))
    assert (progress.step, progress.num_trained) == (0, 0)
    newest = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    assert (newest.step, newest.trained_turn_ids) == (0, [])
    assert (samples_left(bench), drops(bench)) == (8, {})


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
    assert [line["gate_held"] for line in metrics(bench)] == [1, 1]
    assert "back at step 0 from step 2" in progress.alarm
    assert "gate." in progress.alarm
    assert same(weights(bench, 1), load_file(bench.folder / "student" / "model.safetensors"))


def rejected(bench: Bench, number: int) -> Callable[[], Awaitable[bool]]:
    async def are_rejected() -> bool:
        return (await bench.broker.funnel()).drops.get(("train", "gate_rejected"), 0) >= number

    return are_rejected
