import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from hintloop.errors import InstallError, NotReadyError, ProcessDiedError
from hintloop.local.processes import ProcessSpec, Supervisor, describe_exit

#: Starts a worker in its own session and a plain one, says so, ignores SIGTERM when asked to.
PROGRAM = """
import signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
workers = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
print(*(worker.pid for worker in workers), flush=True)
time.sleep(600)
"""


def quiet(name: str, state: str, detail: str) -> None:
    pass


async def ready() -> str | None:
    return None


def spec(*arguments: str, grace_s: float = 60.0) -> ProcessSpec:
    return ProcessSpec("program", [sys.executable, "-c", PROGRAM, *arguments], ready, 10.0, stop_grace_s=grace_s)


def logged(log: Path) -> str:
    return log.read_text() if log.exists() else ""


async def worker_pids(log: Path) -> list[int]:
    async with asyncio.timeout(90):
        while not logged(log).strip():
            await asyncio.sleep(0.05)
    return [int(pid) for pid in logged(log).split()]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_gone(pids: list[int], timeout_s: float = 60.0) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.parametrize("arguments", [(), ("stubborn",)])
async def test_stop_leaves_nothing_of_a_process(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    supervisor = Supervisor(tmp_path, quiet)
    process = await supervisor.start(spec(*arguments, grace_s=0.5 if arguments else 60.0))
    workers = await worker_pids(process.log_path)
    assert len(alive(workers)) == 2
    await supervisor.stop("program")
    assert process.code == 128 + (signal.SIGKILL if arguments else signal.SIGTERM)
    assert wait_gone([*workers, process.pid]) == []


async def test_a_second_stop_ends_the_grace(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, quiet)
    process = await supervisor.start(spec("stubborn", grace_s=300.0))
    workers = await worker_pids(process.log_path)
    stopping = asyncio.ensure_future(supervisor.stop("program"))
    await asyncio.sleep(0.3)
    assert not stopping.done()
    supervisor.hurry()
    async with asyncio.timeout(60):
        await stopping
    assert wait_gone(workers) == []


async def test_workers_of_a_crashed_process_are_ended_and_the_crash_is_reported(tmp_path: Path) -> None:
    crash = PROGRAM.replace("time.sleep(600)", "sys.exit('out of luck')")
    supervisor = Supervisor(tmp_path, quiet)
    process = await supervisor.start(ProcessSpec("program", [sys.executable, "-c", crash], ready, 10.0))
    with pytest.raises(ProcessDiedError) as caught:
        await supervisor.watch()
    assert "program ended with exit code 1" in str(caught.value)
    assert "out of luck" in str(caught.value)
    workers = [int(pid) for pid in process.log_path.read_text().splitlines()[0].split()]
    assert wait_gone(workers) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_parent_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    parent = textwrap.dedent(f"""
        import asyncio, sys
        from pathlib import Path
        from hintloop.local.processes import ProcessSpec, Supervisor
        async def ready(): return None
        async def main():
            supervisor = Supervisor(Path({str(tmp_path)!r}), print)
            command = [sys.executable, "-c", {PROGRAM!r}]
            await supervisor.start(ProcessSpec("program", command, ready, 10.0, stop_grace_s=2.0))
            await asyncio.sleep(600)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.DEVNULL) as process:
        workers = asyncio.run(worker_pids(tmp_path / "program.log"))
        below = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert set(workers) <= set(below)
        process.send_signal(number)
        process.wait(60)
    assert wait_gone(below) == []


async def test_not_ready_in_time_names_the_process_and_shows_its_log(tmp_path: Path) -> None:
    async def never() -> str | None:
        return "connection refused"

    supervisor = Supervisor(tmp_path, quiet)
    command = ["bash", "-c", "echo loading the model; exec sleep 600"]
    process = await supervisor.start(ProcessSpec("engine", command, never, ready_timeout_s=1.0))
    async with asyncio.timeout(60):
        while not logged(process.log_path):
            await asyncio.sleep(0.05)
    # Its second begins once it has said something.
    process.started = time.monotonic()
    with pytest.raises(NotReadyError) as caught:
        await supervisor.wait_ready("engine")
    for part in ("engine was not ready within 1 s", "connection refused", "loading the model"):
        assert part in str(caught.value)
    await supervisor.stop("engine")


async def test_a_process_that_ends_while_it_is_waited_for_is_reported_at_once(tmp_path: Path) -> None:
    async def never() -> str | None:
        return "connection refused"

    supervisor = Supervisor(tmp_path, quiet)
    await supervisor.start(ProcessSpec("engine", ["bash", "-c", "echo no memory; exit 3"], never, 3600.0))
    async with asyncio.timeout(60):
        with pytest.raises(ProcessDiedError, match="exit code 3"):
            await supervisor.wait_ready("engine")


async def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, quiet)
    await supervisor.start(ProcessSpec("nothing", ["/no/such/program"], ready, 5.0))
    with pytest.raises(ProcessDiedError, match="cannot start '/no/such/program'"):
        await supervisor.watch()


async def test_tools_give_their_last_line_or_show_their_log(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, quiet)
    assert await supervisor.run_tool("fine", ["bash", "-c", "echo noise; echo /a/path"]) == "/a/path"
    with pytest.raises(InstallError, match=r"(?s)exit code 7.*disk full"):
        await supervisor.run_tool("broken", ["bash", "-c", "echo disk full >&2; exit 7"])
    with pytest.raises(InstallError, match="silent"):
        await supervisor.run_tool("silent", ["true"])


def test_exit_codes_in_words() -> None:
    assert describe_exit(128 + signal.SIGKILL) == "was ended by SIGKILL"
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(255) == "ended with exit code 255"


async def test_ctrl_c_in_the_terminal_reaches_the_parent_alone(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, quiet)
    process = await supervisor.start(spec())
    workers = await worker_pids(process.log_path)
    assert {os.getpgid(pid) for pid in [process.pid, *workers]}.isdisjoint({os.getpgid(0)})
    await supervisor.stop("program")
