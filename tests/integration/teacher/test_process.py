"""The teacher as a process: it waits for a PRM engine that is not up, says so, and ends cleanly."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hintloop_contract.scoring.channel import SERVICE_NAME
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tests.integration.conftest import free_port


async def test_waits_for_the_engine_and_ends_on_a_signal(redis_server: Any, tmp_path: Path) -> None:
    Tokenizer(WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    port, grpc_port = free_port(), free_port()
    config = tmp_path / "config.toml"
    config.write_text(
        f'[model]\nstudent_model_path = "{tmp_path}"\n[redis]\nurl = "{redis_server.url}"\n'
        f'[prm]\nport = {port}\ngrpc_port = {grpc_port}\nprm_url = "http://127.0.0.1:{free_port()}"\n'
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "hintloop_teacher", "--config", str(config))
    try:
        async with httpx.AsyncClient() as http, asyncio.timeout(180):
            while True:
                try:
                    part = (await http.get(f"http://127.0.0.1:{port}/v1/prm")).json()
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.2)
        assert (part["teacher"]["probed"], part["teacher"]["needed"]) == (False, True)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            states = health_pb2.HealthCheckResponse
            alive = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=60)
            fit = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
            assert (alive.status, fit.status) == (states.SERVING, states.NOT_SERVING)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
