import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from hintloop import funnel
from hintloop.local import redis_server, signals
from hintloop.local.processes import Supervisor
from hintloop_contract.redis_broker import RedisBroker, connect


def quiet(name: str, state: str, detail: str) -> None:
    pass


async def look_for_ever(broker: RedisBroker) -> None:
    while True:
        await funnel.take(broker)


async def test_a_cancelled_look_at_a_real_redis_ends_at_once(tmp_path: Path) -> None:
    socket = redis_server.socket_path(tmp_path)
    supervisor = Supervisor(tmp_path, quiet)
    await supervisor.start(redis_server.spec(tmp_path, socket))
    await supervisor.wait_ready("redis")
    broker = RedisBroker(connect(f"unix://{socket}"), "test")
    try:
        pauses = random.Random(0)
        for _ in range(20):
            looking = asyncio.ensure_future(look_for_ever(broker))
            await asyncio.sleep(pauses.random() * 0.02)
            looking.cancel()
            done, _ = await asyncio.wait({looking}, timeout=60.0)
            assert done
            assert looking.cancelled()
    finally:
        looking.cancel()
        await broker.close()
        await supervisor.stop("redis")


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_lets_the_run_clean_up_and_a_second_one_hurries(number: signal.Signals) -> None:
    seen: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(60)
        finally:
            loop.call_later(0.05, os.kill, os.getpid(), number)
            async with asyncio.timeout(60):
                while not seen:
                    await asyncio.sleep(0.01)
            seen.append("cleaned up")

    before = signal.getsignal(number)
    with pytest.raises(signals.InterruptedRunError) as caught:
        signals.run(run(), lambda: seen.append("hurry"))
    assert caught.value.number == number
    assert seen == ["hurry", "cleaned up"]
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)


@pytest.mark.parametrize("module", ["typer", "hintloop.commands", "hintloop.demo.run"])
def test_ctrl_c_while_the_command_still_loads_ends_as_it_does_later(module: str) -> None:
    """The signal comes in the middle of an import, as it does in the first moments of a command."""
    program = f"""
        import os, signal, sys

        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Interrupting())
        sys.argv = ["hintloop", "demo", "--eval-prompts", "/nowhere"]
        from hintloop.app import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
