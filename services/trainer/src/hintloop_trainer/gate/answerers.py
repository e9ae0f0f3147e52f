"""Who answers probes: a process of this host with transformers, or an engine that serves no agent.

Legend of what they have in common: answers come in the order of the prompts, one each.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Protocol

import msgspec
from hintloop_contract.errors import ConfigError, DependencyError

from hintloop_trainer.gate.messages import (
    HEADER,
    Answer,
    Failed,
    Look,
    Looked,
    Question,
    Read,
    Ready,
    Refused,
    Reply,
    Setup,
    pack,
)
from hintloop_trainer.publish.release import Release

#: Variables by which a launcher tells a process its rank; the answering process is none of the ranks.
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
#: Freed memory is kept and threads do not spin: the same large blocks come again, and cores are shared with engines.
_SURROUNDINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}


class Answerer(Protocol):
    """Answers the probe prompts that it was made with."""

    async def look(self, candidate: Release) -> list[Answer]:
        """Answers of a candidate, whose directory holds whole weights; of the student's first ones there is no probe.

        Raises:
            ConfigError: it can never be done as it is configured.
            DependencyError: it could not be done this time.
        """
        ...

    async def close(self) -> None:
        """End what was started."""
        ...


class AnsweringProcess:
    """The process of :mod:`answering`, started when it is first asked and again after it failed."""

    def __init__(self, setup: Setup, timeout_s: float) -> None:
        """No question takes longer than ``timeout_s`` seconds."""
        self._setup = setup
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._prompt_ids: list[list[int]] = []
        self._asking = asyncio.Lock()

    async def prompt_ids(self) -> list[list[int]]:
        """The prompts' token ids.

        Raises:
            ConfigError: there is nothing to render messages with.
            DependencyError: the process does not start.
        """
        async with self._asking:
            await self._ready()
            return self._prompt_ids

    async def look(self, candidate: Release) -> list[Answer]:
        """See :class:`Answerer`."""
        return await self._answers(Look(str(candidate.directory)))

    async def read(self, token_ids: list[list[int]], entropies: list[float], ended: list[bool]) -> list[Answer]:
        """Answers that another gave, with what the student's first weights think of them."""
        return await self._answers(Read(token_ids, entropies, ended))

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _answers(self, question: Question) -> list[Answer]:
        async with self._asking:
            await self._ready()
            reply = await self._ask(question)
        if not isinstance(reply, Looked):
            raise DependencyError("gate", f"probe not answered: {reply}")
        return reply.answers

    async def _ready(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hintloop_trainer.gate.answering",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**_SURROUNDINGS, **{k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}},
        )
        reply = await self._ask(self._setup)
        if isinstance(reply, Ready):
            self._prompt_ids = reply.prompt_ids
            return
        await self.close()
        if isinstance(reply, Refused):
            raise ConfigError(reply.detail)
        raise DependencyError("gate", f"the answering process is not ready: {reply}")

    async def _ask(self, question: Question) -> Reply:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                process.stdin.write(pack(question))
                await process.stdin.drain()
                header = await process.stdout.readexactly(HEADER.size)
                data = await process.stdout.readexactly(HEADER.unpack(header)[0])
        except TimeoutError as error:
            await self.close()
            raise DependencyError("gate", f"no answer within gate.timeout_s = {self._timeout_s:.0f} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self.close()
            raise DependencyError("gate", f"the answering process ended with {process.returncode}") from error
        except BaseException:
            # Cancelled: what it answers later must not be taken for the next question's answer.
            await self.close()
            raise
        reply: Any = msgspec.msgpack.decode(data, type=Reply)
        if isinstance(reply, Failed):
            raise DependencyError("gate", reply.detail)
        answer: Reply = reply
        return answer
