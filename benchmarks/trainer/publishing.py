"""How long it takes from the end of a step to the first answer by its weights: a real vLLM that reads them from disk.

The trainer's own parts do it: probe scores, export, pause, load, flush, resume, probe. Then one answer is asked for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from hintloop_contract.broker import Broker
from hintloop_contract.config.schema import Config
from hintloop_contract.testing.memory import MemoryBroker

from benchmarks.trainer import contestant

ENGINE = Path(__file__).parents[2] / "engines" / "vllm"
START_TIMEOUT_S = 180.0
REPETITIONS = 3
NUM_SAMPLES = 2
ANSWER_TOKENS = 16


class NoEngineError(Exception):
    """The engine could not be installed or started."""


def install() -> None:
    """Build vLLM's environment, unless it is there.

    Raises:
        NoEngineError: it cannot be built.
    """
    done = subprocess.run([str(ENGINE / "install.sh")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoEngineError(f"engines/vllm/install.sh ended with {done.returncode}: {done.stderr.strip()[-400:]}")


@contextmanager
def engine(model: Path, log: Path) -> Iterator[str]:
    """A policy engine with ``model``; its address.

    Raises:
        NoEngineError: it does not answer in time.
    """
    from hintloop_trainer.megatron.parallel import free_port

    port = free_port()
    command = [str(ENGINE / "start.sh"), "--model", str(model), "--port", str(port)]
    command += ["--served-model-name", "policy", "--role", "policy", "--max-model-len", "1024"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        try:
            asyncio.run(_healthy(process, f"http://127.0.0.1:{port}"))
        except NoEngineError as error:
            raise NoEngineError(f"{error}: {log.read_text(errors='replace')[-400:]}") from None
        yield f"http://127.0.0.1:{port}"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(30)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue


async def _healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                async with session.get(f"{url}/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise NoEngineError("vLLM did not answer")


def run(model: Path) -> dict[str, Any]:
    """Seconds from step to answer: the median, and each repetition by part."""
    install()
    with tempfile.TemporaryDirectory() as folder, engine(model, Path(folder) / "vllm.log") as url:
        config = contestant.configuration(
            model,
            num_samples=NUM_SAMPLES,
            rollout={"engine": "vllm", "rollout_batch_size": NUM_SAMPLES},
            policy={"engines": [url]},
            publishing={"weights_dir": str(Path(folder) / "weights")},
        )
        learner, step = contestant.learner(config)
        repetitions = [_once(learner, step, config, version, url) for version in range(1, REPETITIONS + 1)]
    return {"seconds": statistics.median(item["seconds"] for item in repetitions), "repetitions": repetitions}


def _once(learner: Any, step: contestant.Step, config: Config, version: int, url: str) -> dict[str, float]:
    from hintloop_trainer.publish.probe import probe_ids
    from hintloop_trainer.publish.release import Release

    step()
    ended = time.perf_counter()
    ids = probe_ids(Path(config.tokenizer_dir), learner.arch.vocab_size)
    scores = learner.score(ids)
    directory = config.publishing.weights_dir.resolve() / str(version)
    learner.export(directory)
    exported = time.perf_counter()
    published = asyncio.run(_publish(config, Release(version, directory, ids, scores), url))
    return {
        "seconds": published[1] - ended,
        "export": exported - ended,
        "publish": published[0] - exported,
        "answer": published[1] - published[0],
    }


async def _publish(config: Config, release: Any, url: str) -> tuple[float, float]:
    """When the version was released, and when an answer by it was there."""
    from hintloop_trainer.wiring import engine_controls, make_publisher

    broker: Broker = MemoryBroker()
    async with aiohttp.ClientSession() as session:
        controls = engine_controls(config, session)
        publisher = make_publisher(config, broker, controls)
        await publisher.publish(release)
        released = time.perf_counter()
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": "Name three rivers."}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0.0,
        }
        async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
            answer = await reply.json()
        answered = time.perf_counter()
        served = await controls[0].version()
        if reply.status != 200 or not answer["usage"]["completion_tokens"] or served != release.version:
            raise NoEngineError(f"version {release.version} did not answer: {served}, {str(answer)[:400]}")
        await publisher.close()
    await broker.close()
    return released, answered
