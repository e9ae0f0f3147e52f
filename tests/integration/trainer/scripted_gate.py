"""A release gate whose answers are told beforehand, and what is looked at in the runs with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

import torch
from hintloop_contract.config.gate import GateSection
from hintloop_contract.streams import SAMPLES
from hintloop_trainer.gate.gate import Gate
from hintloop_trainer.gate.messages import Answer
from hintloop_trainer.gate.probes import Probe
from hintloop_trainer.publish.release import Release
from safetensors.torch import load_file

from .conftest import Bench, run

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


def samples_left(bench: Bench) -> int:
    return int(run(bench, bench.broker.counts(SAMPLES)).length)


def drops(bench: Bench) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = run(bench, bench.broker.funnel()).drops
    return found


def stop_when(
    bench: Bench, condition: Callable[[], Awaitable[bool]], timeout_s: float = 180.0, after_s: float = 0.0
) -> threading.Event:
    """An event that is set ``after_s`` seconds after the condition held, or after the time."""
    stop = threading.Event()

    async def watch() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not await condition():
                    await asyncio.sleep(0.05)
        await asyncio.sleep(after_s)
        stop.set()

    bench.background.submit(watch())
    return stop


def released(bench: Bench, version: int) -> Callable[[], Awaitable[bool]]:
    async def is_current() -> bool:
        return (await bench.broker.weights()).current == version

    return is_current


def collecting(bench: Bench, step: int) -> Callable[[], Awaitable[bool]]:
    """Whether the trainer made so many steps and waits for the next samples."""

    async def is_collecting() -> bool:
        status = await bench.broker.get_status("trainer")
        return (status.get("step"), status.get("phase")) == (str(step), "collecting")

    return is_collecting


def acknowledged(bench: Bench) -> Callable[[], Awaitable[bool]]:
    """Whether no sample is left."""

    async def are_acknowledged() -> bool:
        return not (await bench.broker.counts(SAMPLES)).length

    return are_acknowledged


def holding(bench: Bench, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether the trainer holds so many samples."""

    async def is_holding() -> bool:
        return (await bench.broker.counts(SAMPLES)).pending == number

    return is_holding


async def never() -> bool:
    return False
