"""What goes wrong in a run, and what of it is lost: nothing that was not trained, and no weights that were."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hintloop_contract.broker import WeightsState
from hintloop_contract.errors import DependencyError
from hintloop_contract.messages import Sample
from hintloop_contract.redis_broker import RedisBroker, connect
from hintloop_contract.streams import SAMPLES
from hintloop_contract.tensors import pack
from hintloop_trainer import checkpoints, samples
from hintloop_trainer.admission import Admission
from hintloop_trainer.errors import BackgroundError, TrainingError, WeightsError
from hintloop_trainer.learner import Learner
from hintloop_trainer.ranks import Ranks
from hintloop_trainer.samples import SampleSource
from structlog.testing import capture_logs

from .conftest import Bench, run
from .scripted_gate import acknowledged, collecting, holding, stop_when

MakeSample = Callable[..., Sample]


def free(bench: Bench) -> list[str]:
    """Turns that any trainer can claim at once."""
    entries = run(bench, bench.broker.claim(SAMPLES, "another", 100, 60_000))
    return sorted(entry.turn_id for entry in entries)


async def away(*arguments: object) -> int:
    raise DependencyError("redis", "cut off")


def test_weights_that_are_no_numbers_are_neither_saved_nor_released(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    step = Learner.step

    def ruin(learner: Learner, index: int) -> Any:
        result = step(learner, index)
        learner.model.decoder.final_layernorm.weight.data.fill_(float("nan"))
        return result

    monkeypatch.setattr(Learner, "step", ruin)
    with pytest.raises(WeightsError, match="step 1 score the probe"):
        bench.train(bench.config())
    assert checkpoints.complete(bench.folder / "checkpoints") == []
    assert [path.name for path in (bench.folder / "weights").glob("[0-9]*")] == ["1"]
    assert run(bench, bench.broker.weights()) == WeightsState(current=1, updating=None)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2
    assert run(bench, bench.broker.get_status("trainer"))["phase"] == "failed"


def test_the_configured_optimizer_holds_after_a_resume(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    bench.train(bench.config(training={"max_steps": 1}))
    bench.feed([make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)])
    changed = {"max_steps": 1, "learning_rate": 3e-4, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95}
    _, learner = bench.train(bench.config(training=changed))
    assert [line["effective_learning_rate"] for line in bench.metrics()] == [1e-3, 3e-4]
    assert bench.metrics()[-1]["effective_weight_decay"] == 0.1
    for group in learner.optimizer.param_groups:
        assert (group["lr"], group["betas"]) == (3e-4, (0.8, 0.95))
        assert group["weight_decay"] == 0.1 * group["wd_mult"]


def test_a_rising_learning_rate_goes_on_after_a_resume(bench: Bench, make_sample: MakeSample) -> None:
    rising = {"max_steps": 1, "lr_warmup_steps": 3}
    bench.feed([make_sample(turn) for turn in range(2)])
    bench.train(bench.config(training=rising))
    bench.feed([make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)])
    bench.train(bench.config(training=rising))
    assert [line["effective_learning_rate"] for line in bench.metrics()] == [2.5e-4, 5e-4]


#: A finite loss whose slope is infinite, on batches that no loss is tried on before.
BAD_FOR_BAD_SCORES = """
from hintloop_trainer.losses.inputs import TokenLosses
REQUIRES = {"score"}
def compute_loss(inputs):
    if (inputs.scores_N < 0).all():
        return TokenLosses((0 * inputs.logprobs_N).abs().sqrt())
    return TokenLosses(inputs.logprobs_N)
"""


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_a_batch_without_a_finite_gradient_fails_and_training_goes_on(
    bench: Bench, make_sample: MakeSample, attempts: int, num_epochs: int
) -> None:
    (bench.folder / "bad.py").write_text(BAD_FOR_BAD_SCORES)
    bench.feed([make_sample(turn, score=-1) for turn in range(2)])
    bench.feed([make_sample(turn, score=1) for turn in (2, 3)])
    trained = collecting(bench, num_epochs)

    async def done() -> bool:
        return sum((await bench.broker.funnel()).drops.values()) == 2 and await trained()

    config = bench.config(
        training={"use_custom_loss": True, "custom_loss_path": "bad.py", "max_steps": 9, "num_epochs": num_epochs},
        redis={"max_attempts": attempts, "claim_idle_ms": 1000},
    )
    progress, _ = bench.train(config, stop=stop_when(bench, done))
    assert (progress.step, progress.num_trained) == (num_epochs, 2)
    assert run(bench, bench.broker.funnel()).drops == {("train", "dead"): 2}
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0


BAD_FOR_ONE_TEACHER = """
from hintloop_trainer.losses.inputs import TokenLosses
REQUIRES = {"teacher_logprobs"}
def compute_loss(inputs):
    losses = inputs.logprobs_N.clone()
    bad = inputs.teacher_logprobs_N == -77.0
    losses[bad] = (0 * inputs.logprobs_N[bad]).abs().sqrt()
    return TokenLosses(losses)
"""


def test_of_a_batch_without_a_finite_gradient_only_the_sample_at_fault_fails(
    bench: Bench, make_sample: MakeSample
) -> None:
    (bench.folder / "bad.py").write_text(BAD_FOR_ONE_TEACHER)
    bench.feed([make_sample(0), make_sample(1, teacher_logprobs=pack([-77.0] * 4, "float32")), make_sample(2)])
    config = bench.config(
        training={"use_custom_loss": True, "custom_loss_path": "bad.py", "max_steps": 1}, redis={"max_attempts": 1}
    )
    progress, _ = bench.train(config)
    assert (progress.step, progress.num_trained) == (1, 2)
    assert bench.trained_ids() == ["turn-0000", "turn-0002"]
    assert run(bench, bench.broker.funnel()).drops == {("train", "dead"): 1}
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0


def test_a_malformed_sample_is_dead_and_reading_goes_on(bench: Bench, make_sample: MakeSample) -> None:
    whole = make_sample(0)
    cut = msgspec.structs.replace(whole.response_ids, data=whole.response_ids.data[:-1])
    odd = msgspec.structs.replace(whole.prompt_ids, dtype="complex64")
    bench.feed([make_sample(0, response_ids=cut), make_sample(1, prompt_ids=odd), make_sample(2), make_sample(3)])
    progress, _ = bench.train(bench.config(training={"max_steps": 1}))
    assert progress.num_trained == 2
    assert run(bench, bench.broker.funnel()).drops == {("train", "dead"): 2}


def test_a_reader_that_ends_ends_the_run_with_a_checkpoint(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(3)])
    trained, read, broken = SampleSource.trained, SampleSource._read, threading.Event()

    async def count(source: SampleSource, held: Any) -> None:
        broken.set()
        await trained(source, held)

    async def fail(source: SampleSource) -> None:
        if broken.is_set():
            raise KeyError("data")
        await read(source)

    monkeypatch.setattr(SampleSource, "trained", count)
    monkeypatch.setattr(SampleSource, "_read", fail)
    with pytest.raises(BackgroundError, match="reading samples ended: KeyError"):
        bench.train(bench.config(training={"max_steps": 5}))
    assert bench.trained_ids() == ["turn-0000", "turn-0001"]
    assert run(bench, bench.broker.counts(SAMPLES)).length == 1
    assert run(bench, bench.broker.get_status("trainer"))["phase"] == "failed"


def test_turns_that_stay_unacknowledged_are_in_every_later_checkpoint(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(2)])
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.broker), "finish", away)
        bench.train(bench.config(training={"max_steps": 1}))
    bench.feed([make_sample(turn, version_oldest=2, version_newest=2) for turn in (10, 11)])
    # The second trainer waits until the first two can be claimed; its checkpoint carries them on all the same.
    bench.train(bench.config(training={"max_steps": 1}, redis={"claim_idle_ms": 2000}))
    assert bench.trained_ids() == ["turn-0000", "turn-0001", "turn-0010", "turn-0011"]

    stop = stop_when(bench, acknowledged(bench))
    progress, _ = bench.train(bench.config(redis={"claim_idle_ms": 1000}), stop=stop)
    assert (progress.step, progress.num_trained) == (2, 4)
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0


def test_a_stop_in_the_first_of_two_passes_forgets_no_step_and_keeps_no_sample(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    stop, trained = threading.Event(), SampleSource.trained

    async def count(source: SampleSource, held: Any) -> None:
        stop.set()
        await trained(source, held)

    monkeypatch.setattr(SampleSource, "trained", count)
    config = bench.config(rollout={"rollout_batch_size": 4}, training={"num_epochs": 2, "max_steps": 9})
    progress, _ = bench.train(config, stop=stop)
    assert (progress.step, progress.num_trained) == (1, 2)
    assert bench.trained_ids() == ["turn-0000", "turn-0001"]
    assert run(bench, bench.broker.counts(SAMPLES)).length == 2
    assert free(bench) == ["turn-0002", "turn-0003"]


def test_no_step_is_made_past_the_limit(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(6)])
    config = bench.config(rollout={"rollout_batch_size": 6}, training={"max_steps": 2})
    progress, _ = bench.train(config)
    assert (progress.step, progress.num_trained) == (2, 4)
    assert free(bench) == ["turn-0004", "turn-0005"]


def test_what_an_earlier_run_said_of_trained_turns_does_not_stand(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(0)])
    run(bench, bench.broker.set_trained_pending(7))
    bench.train(bench.config(), stop=stop_when(bench, holding(bench, 1)))
    assert run(bench, bench.broker.untrained()) == 1


def test_versions_rise_when_redis_lost_its_count(bench: Bench, make_sample: MakeSample) -> None:
    bench.feed([make_sample(turn) for turn in range(4)])
    bench.train(bench.config())
    broker: Any = bench.broker
    run(bench, broker.client.flushall())
    run(bench, bench.broker.ensure_groups())
    bench.feed([make_sample(turn, version_oldest=3, version_newest=3) for turn in (10, 11)])
    progress, _ = bench.train(bench.config(training={"max_steps": 1}))
    assert [released.version for released in progress.lineage.versions] == [1, 2, 3, 4, 5]


def test_no_more_turns_are_remembered_than_could_come_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MEMORY", 3)
    source = SampleSource(
        bench.broker, "trainer", Admission(bench.config(), None), vocab_size=131, claim_idle_ms=1000, capacity=4
    )
    source.skip(["1", "2", "3", "4"])
    source.skip(["2", "5"])
    assert run(bench, source.in_weights()) == ["3", "4", "5"]


def test_what_redis_lost_and_is_sent_again_is_not_trained_again(
    bench: Bench, make_sample: MakeSample, monkeypatch: pytest.MonkeyPatch, redis_server: Any
) -> None:
    async def connected() -> RedisBroker:
        return RedisBroker(connect(redis_server.url), "test")

    broker: Any = run(bench, connected())
    bench.broker = broker
    run(bench, bench.broker.ensure_groups())
    bench.feed([make_sample(turn) for turn in range(2)])
    count, stop, sent = SampleSource.trained, threading.Event(), asyncio.Event()

    async def lose(source: SampleSource, held: Any) -> None:
        await count(source, held)
        await broker.client.flushall()
        for turn in range(4):
            await broker.append(SAMPLES, make_sample(turn))
        monkeypatch.setattr(SampleSource, "trained", count)
        sent.set()

    async def end_when_empty() -> None:
        await sent.wait()
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and (await bench.broker.counts(SAMPLES)).length:
            await asyncio.sleep(0.1)
        stop.set()

    monkeypatch.setattr(SampleSource, "trained", lose)
    watching = bench.background.submit(end_when_empty())
    with capture_logs() as logs:
        config = bench.config(training={"save_interval": 1, "max_steps": 9}, redis={"claim_idle_ms": 1000})
        progress, _ = bench.train(config, stop=stop)
    watching.result()
    assert (progress.step, progress.num_trained) == (2, 4)
    assert bench.trained_ids() == [f"turn-{turn:04d}" for turn in range(4)]
    assert run(bench, bench.broker.counts(SAMPLES)).length == 0
    lost = [line for line in logs if "Redis lost data" in line["event"]]
    assert [line["missing"] for line in lost] == [2]
    assert run(bench, bench.broker.weights()).current == progress.lineage.current
    run(bench, broker.close())


def test_followers_stay_when_no_step_is_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Target:
        def step(self) -> None:
            calls.append("step")
            raise TrainingError("the loss is nan")

        def save(self) -> None:
            calls.append("save")

    orders = iter([("step", ()), ("idle", ()), ("save", ()), ("stop", ())])

    def broadcast(message: list[Any], src: int) -> None:
        message[0] = next(orders)

    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    Ranks(Target(), bench.layout).follow()
    assert calls == ["step", "save"]


def test_work_that_should_last_and_ends_is_noticed(bench: Bench) -> None:
    async def end() -> None:
        return None

    bench.background.keep("reading samples", end())
    with pytest.raises(BackgroundError, match="reading samples ended: without an error"):
        for _ in range(6000):
            bench.background.check()
            time.sleep(0.01)
    bench.background.finish(5)
    bench.background.check()
