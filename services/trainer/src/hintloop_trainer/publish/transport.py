"""How weights get into an engine: it reads them from the shared disk, or receives them in a process group.

An exported version lies on the disk in either case: engines start from it, and it is the way back. The process group
only spares a running engine the reading. Whatever goes wrong with a group, the engine is given the disk instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar, cast

import structlog
import torch

from hintloop_trainer.errors import EngineAwayError, PublishError
from hintloop_trainer.publish.engines import EngineControl
from hintloop_trainer.publish.group import Meeting, WeightGroup
from hintloop_trainer.publish.release import Release
from hintloop_trainer.publish.tensors import PORTION_BYTES, Portion, portions

T = TypeVar("T")

#: Seconds that an engine's own words are waited for, once the group has failed.
LAST_WORDS_S = 2.0


class GroupControl(EngineControl, Protocol):
    """What an engine does to receive weights in a process group."""

    async def num_workers(self) -> int:
        """Ranks that the engine brings into the group."""
        ...

    async def join(self, meeting: Meeting) -> None:
        """Let every worker join; answers once they are all in."""
        ...

    async def leave(self, meeting: Meeting) -> None:
        """Let every worker leave."""
        ...

    async def begin_update(self) -> None:
        """Make the layers ready to be filled anew."""
        ...

    async def receive(self, portion: Portion, version: int) -> None:
        """Receive one portion and load it; answers once that is done."""
        ...

    async def finish_update(self, version: int) -> None:
        """Finish the layers, forget everything computed with the old ones, take the version."""
        ...

    async def abandon_update(self, reason: str) -> None:
        """End an update that failed, so that another one may begin."""
        ...


class Transport(Protocol):
    """Brings a release's weights into an engine that is paused."""

    async def put(self, control: Any, release: Release) -> str:
        """Load ``release`` and name its version; which way it went.

        Raises:
            EngineAwayError: the engine does not answer.
            PublishError: it did not take the weights.
        """
        ...

    async def close(self) -> None:
        """Let go of what is held between releases."""
        ...


class DiskTransport:
    """The engine reads the release's directory."""

    async def put(self, control: EngineControl, release: Release) -> str:
        """See :class:`Transport`."""
        await control.replace(release.directory, release.version)
        return "disk"

    async def close(self) -> None:
        """Nothing is held."""


class GroupTransport:
    """The engine receives the tensors in a process group that is kept from one release to the next."""

    def __init__(self, device: torch.device, timeout_s: float, portion_bytes: int = PORTION_BYTES) -> None:
        """Send from ``device``; no single step takes longer than ``timeout_s`` seconds."""
        self._portion_bytes = portion_bytes
        self._device = device
        self._timeout_s = timeout_s
        self._groups: dict[str, WeightGroup] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def put(self, control: GroupControl, release: Release) -> str:
        """See :class:`Transport`. A group that fails is left; an old one is tried anew once, then the disk serves."""
        known = control.url in self._groups
        for attempt in ("old", "new") if known else ("new",):
            try:
                await self._transfer(control, release)
            except EngineAwayError:
                raise
            except PublishError as error:
                self._log.warning("process group failed", engine=control.url, group=attempt, detail=str(error))
            else:
                return "process_group"
        self._log.warning("weights go by disk", engine=control.url, version=release.version)
        await control.replace(release.directory, release.version)
        return "disk"

    async def _transfer(self, control: GroupControl, release: Release) -> None:
        group = self._groups.get(control.url)
        try:
            if group is None:
                group = self._groups[control.url] = await self._open(control)
            await control.begin_update()
            async for portion in _read(release, self._portion_bytes):
                on_device = [tensor.to(self._device) for tensor in portion.tensors]
                await _together(self._sent(control.url, group, on_device), control.receive(portion, release.version))
            await control.finish_update(release.version)
        except BaseException as error:
            await self._give_up(control, error)
            raise

    async def _open(self, control: GroupControl) -> WeightGroup:
        num_workers = await control.num_workers()
        with _failing(control.url, "process group: meeting"):
            invitation = WeightGroup.invite(control.url, num_workers, self._device, self._timeout_s)
        started = time.perf_counter()
        opening = asyncio.create_task(_apart(invitation.open))
        try:
            await _together(self._opened(control.url, opening), control.join(invitation.meeting))
        except BaseException:
            # Its thread ends with the meeting's seconds; a group that is then complete is of no use to anyone.
            self._later(_close_when_open(opening))
            raise
        group = opening.result()
        self._log.info(
            "process group open",
            engine=control.url,
            backend=group.meeting.backend,
            world_size=group.meeting.world_size,
            seconds=round(time.perf_counter() - started, 3),
        )
        return group

    async def _opened(self, url: str, opening: asyncio.Task[WeightGroup]) -> None:
        with _failing(url, "process group: meeting", self._timeout_s):
            await asyncio.shield(opening)

    async def _sent(self, url: str, group: WeightGroup, tensors: list[torch.Tensor]) -> None:
        with _failing(url, "process group: send", self._timeout_s):
            await group.send(tensors)

    async def _give_up(self, control: GroupControl, reason: BaseException) -> None:
        """Leave the group first: that frees an engine that waits in it."""
        group = self._groups.pop(control.url, None)
        if group is not None:
            self._later(_apart(group.close))
        with contextlib.suppress(PublishError):
            await control.abandon_update(f"{type(reason).__name__}: {reason}"[:200])
            if group is not None:
                await control.leave(group.meeting)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._log.warning("process group not closed", detail=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Leave every group. The engines notice by themselves; what hangs is not waited for."""
        groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            self._later(_apart(group.close))
        if self._closing:
            await asyncio.wait(self._closing, timeout=LAST_WORDS_S)


async def _close_when_open(opening: asyncio.Task[WeightGroup]) -> None:
    with contextlib.suppress(Exception):
        await _apart((await opening).close)


async def _apart(work: Callable[[], T]) -> T:
    """Do ``work`` in a thread that the end of the process does not wait for: torch cannot be interrupted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            failure = error
        # The loop may be closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="process group", daemon=True).start()
    return await done


async def _read(release: Release, portion_bytes: int) -> AsyncIterator[Portion]:
    """The release's portions, read beside the loop."""
    with _failing(str(release.directory), "reading"):
        source = portions(release.directory, portion_bytes)
        while (portion := await asyncio.to_thread(next, source, None)) is not None:
            yield portion


@contextlib.contextmanager
def _failing(url: str, step: str, timeout_s: float = 0.0) -> Iterator[None]:
    """Name the owner of what torch, sockets and files raise."""
    try:
        yield
    except TimeoutError as error:
        raise PublishError(url, step, f"not done within {timeout_s:g} s") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise PublishError(url, step, f"{type(error).__name__}: {error}") from error


async def _together(ours: Coroutine[Any, Any, None], engines: Coroutine[Any, Any, None]) -> None:
    """Both at once. When one fails the other is not waited for; what the engine says of a failure comes first."""
    mine, its = asyncio.create_task(ours), asyncio.create_task(engines)
    try:
        await asyncio.wait((mine, its), return_when=asyncio.FIRST_EXCEPTION)
        if not its.done():
            await asyncio.wait((its,), timeout=LAST_WORDS_S)
        if its.done():
            its.result()
        mine.result()
    finally:
        for task in (mine, its):
            task.cancel()
        await asyncio.gather(mine, its, return_exceptions=True)
