"""Operators' rollbacks, the pause and going on. The gate's answers are scripted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.control import Command, ControlRequest, Pause
from hintloop_contract.messages import Sample
from hintloop_contract.tensors import pack
from hintloop_trainer import checkpoints, loop
from hintloop_trainer.control_part import ATTEMPTS
from hintloop_trainer.errors import StopRequestedError
from hintloop_trainer.points import Point
from hintloop_trainer.publish_part import PublishPart
from safetensors.torch import load_file

from .conftest import Bench, run
from .scripted_gate import drops, gate, never, released, same, samples_left, stop_when, weights

MakeSample = Callable[..., Sample]


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


def test_a_drill_walks_both_ways_and_changes_nothing(trained: Bench, make_sample: MakeSample) -> None:
    asked = ask(trained, ControlRequest(command=Command.DRILL))
    progress, _ = trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    found = outcome(trained, asked)
    assert (found.state, found.version) == ("done", 6)
    assert "version 4 was published anew as 5, and gone back to as 6" in found.detail
    assert same(weights(trained, 4), weights(trained, 5)) and same(weights(trained, 4), weights(trained, 6))
    assert run(trained, trained.broker.weights()).current == 6
    assert (progress.step, run(trained, trained.broker.paused())) == (3, None)
    trained.feed([make_sample(turn, version_oldest=4, version_newest=4) for turn in (41, 42)])
    progress, _ = trained.train(rollback_config(trained))
    assert (progress.step, drops(trained)) == (4, {}), "answers of the version before are still its descendants'"


def test_a_drill_does_not_end_a_pause(trained: Bench) -> None:
    ask(trained, ControlRequest(command=Command.ROLLBACK, version=3))
    asked = ask(trained, ControlRequest(command=Command.DRILL))
    trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    assert outcome(trained, asked).state == "done"
    assert run(trained, trained.broker.paused()).reason == "rolled back to version 3"


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


def test_a_trainer_that_is_asked_to_end_over_a_request_did_not_fail_at_it(
    trained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(trained, ControlRequest(command=Command.ROLLBACK, version=2))

    def stop(*_: Any, **__: Any) -> None:
        raise StopRequestedError

    with monkeypatch.context() as patch:
        # As while no engine answers.
        patch.setattr(PublishPart, "publish", stop)
        for _ in range(ATTEMPTS + 1):
            trained.train(rollback_config(trained))
            assert (outcome(trained, asked).state, outcome(trained, asked).detail) == ("accepted", "0")
    trained.train(rollback_config(trained), stop=stop_when(trained, settled(trained, asked)))
    assert outcome(trained, asked).state == "done"
    assert run(trained, trained.broker.paused()).reason == "rolled back to version 2"


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


def test_an_adapter_is_gone_back_to_with_its_teacher_and_reference(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "COLLECT_WAIT_S", 0.2)
    hinted = pack([1, 2, 3, 4, 5, 6, 7], "int32")
    bench.feed([make_sample(turn, teacher_logprobs=None, hinted_prompt_ids=hinted) for turn in range(4)])
    asked: list[str] = []

    def ask_after_two_steps(point: Point) -> None:
        if point == Point.PUBLISHED and not asked and run(bench, bench.broker.weights()).current == 3:
            asked.append(ask(bench, ControlRequest(command=Command.ROLLBACK, version=2)))
            ask(bench, ControlRequest(command=Command.RESUME))

    config = bench.config(
        lora={"enabled": True, "rank": 4},
        advantage={"estimator": "combine"},
        prm={"teacher_source": "trainer", "teacher_weights": "ema", "ema_decay": 0.5},
        training={"max_steps": 9, "kl_coef": 0.1, "learning_rate": 1e-2},
        publishing={"keep_versions": 20},
    )
    stop = stop_when(bench, released(bench, 5))
    progress, _ = bench.train(config, gate=gate(bench, []), reached=ask_after_two_steps, stop=stop)
    versions = [load_file(bench.folder / "weights" / str(v) / "adapter_model.safetensors") for v in (2, 4)]
    assert same(*versions)
    assert "weights alone" in outcome(bench, asked[0]).detail
    # Step 2 was made twice, of the same weights, against the same reference; of other advantages, for the teacher
    # begins anew at version 2. Nothing is trained twice that is left.
    lines = [json.loads(line) for line in (bench.folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["version"]) for line in lines] == [(1, 2), (2, 3), (2, 5)]
    assert lines[0]["kl"] == 0.0 and lines[1]["kl"] == lines[2]["kl"] > 0.0
    state = checkpoints.read_state(checkpoints.complete(bench.folder / "checkpoints")[-1])
    assert (progress.step, state.trained_turn_ids) == (2, [f"turn-{turn:04d}" for turn in range(4)])
    assert samples_left(bench) == 0
