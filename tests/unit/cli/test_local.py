import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hintloop.errors import CommandError, StateDirError
from hintloop.local import ports, redis_server, resolution
from hintloop.local.resolution import Sources
from hintloop.local.state_dir import Owner, StateDir


def test_chosen_ports_are_free_and_different() -> None:
    chosen = ports.choose(8)
    assert len(set(chosen)) == 8
    assert all(ports.is_free("127.0.0.1", port) for port in chosen)


def test_a_taken_port_is_refused_by_the_name_of_its_key() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        with pytest.raises(CommandError, match=rf"proxy\.port = {port}.*change the port"):
            ports.require_free("127.0.0.1", port, "proxy.port")


def test_state_dir_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with StateDir(tmp_path / "state", "up"):
        with pytest.raises(StateDirError, match=f"in use by process {os.getpid()}"), StateDir(tmp_path / "state", "up"):
            pass
    with StateDir(tmp_path / "state", "up"):
        pass


def test_the_lock_goes_with_a_killed_owner(tmp_path: Path) -> None:
    program = (
        "import os, signal; from pathlib import Path; from hintloop.local.state_dir import StateDir\n"
        f"StateDir(Path({str(tmp_path)!r}), 'up').__enter__(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    with StateDir(tmp_path, "up"):
        pass


def test_only_state_of_ours_is_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("chapter one")
    with StateDir(tmp_path, "up") as state, pytest.raises(StateDirError, match="'thesis.tex'"):
        state.clear()
    assert precious.read_text() == "chapter one"

    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "kept").touch()
    with StateDir(tmp_path / "demo", "demo") as state:
        state.clear()
        (state.path / "weights").mkdir()
        (state.path / "weights" / "1").touch()
        (state.path / "link").symlink_to(target)
        state.clear()
        assert sorted(entry.name for entry in state.path.iterdir()) == [".hintloop-state", "lock"]
    assert (target / "kept").exists()


@pytest.mark.parametrize(("first", "second"), [("up", "demo"), ("demo", "up")])
def test_a_command_leaves_the_other_ones_state_alone(tmp_path: Path, first: Owner, second: Owner) -> None:
    with StateDir(tmp_path / "state", first) as state:
        state.mark()
    checkpoint = tmp_path / "state" / "checkpoints"
    checkpoint.mkdir()
    with pytest.raises(StateDirError, match=f"`hintloop {first}`.*give another directory"):
        StateDir(tmp_path / "state", second).__enter__()
    assert checkpoint.exists()
    # The refused one holds no lock.
    with StateDir(tmp_path / "state", first):
        pass


def test_redis_socket_stays_within_what_a_socket_path_can_be(tmp_path: Path) -> None:
    assert redis_server.socket_path(Path("/short")) == Path("/short/redis.sock")
    deep = tmp_path / ("d" * 120)
    path = redis_server.socket_path(deep)
    assert len(os.fsencode(path)) <= redis_server.MAX_SOCKET_PATH
    assert path.parent.stat().st_mode & 0o077 == 0
    assert redis_server.socket_path(deep) == path
    path.parent.rmdir()


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HINTLOOP_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_environment")
def test_what_is_configured_stands_and_the_rest_is_decided(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    port = ports.choose(1)[0]
    config.write_text(f'[proxy]\nport = {port}\n[prm]\nprm_url = "https://prm.example/api"\n[training]\n')
    sources = Sources([config])
    plan = resolution.plan(sources.load(), tmp_path / "state", "unix:///s", "vllm")
    assert (plan.redis, plan.policy_engine, plan.prm_engine) == (True, True, False)
    written = tmp_path / "config.toml"
    resolution.write(written, plan.values)
    loaded = sources.load(written)
    assert loaded.config.proxy.port == port
    assert loaded.config.prm.prm_url == "https://prm.example/api"
    assert loaded.config.redis.url.get_secret_value() == "unix:///s"
    assert loaded.config.training.checkpoint_dir == tmp_path / "state" / "checkpoints"
    assert loaded.origins["proxy.port"] == str(config)
    assert loaded.origins["prm.port"] == str(written)


@pytest.mark.usefixtures("no_environment")
def test_agents_find_the_proxy_on_its_default_port_or_are_told_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Sources().load()
    default = loaded.config.proxy.port
    taken: set[int] = set()
    monkeypatch.setattr(ports, "is_free", lambda host, port: port not in taken)
    plan = resolution.plan(loaded, tmp_path, "unix:///s", "vllm", default_port=True)
    assert (plan.values["proxy"]["port"], plan.notes) == (default, [])
    taken.add(default)
    plan = resolution.plan(loaded, tmp_path, "unix:///s", "vllm", default_port=True)
    other = plan.values["proxy"]["port"]
    assert other != default
    (note,) = plan.notes
    assert f":{default}" in note
    assert str(other) in note


@pytest.mark.usefixtures("no_environment")
def test_a_stack_attached_everywhere_starts_neither_engines_nor_redis(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(
        '[policy]\nengines = ["http://10.0.0.1:8000"]\n[prm]\nprm_url = "http://10.0.0.2:8000"\n'
        '[redis]\nurl = "redis://10.0.0.3"\n'
    )
    plan = resolution.plan(Sources([config]).load(), tmp_path, "unix:///s", "vllm")
    assert (plan.redis, plan.policy_engine, plan.prm_engine) == (False, False, False)
    assert "redis" not in plan.values
    assert "rollout" not in plan.values


@pytest.mark.usefixtures("no_environment")
def test_services_get_the_users_sources_with_the_decisions_last(tmp_path: Path) -> None:
    sources = Sources([Path("a.toml"), Path("b.toml")], [Path("s.json")], {"rollout.engine": "vllm"})
    arguments = sources.arguments(tmp_path / "config.toml")
    files = [arguments[i + 1] for i, argument in enumerate(arguments) if argument == "--config"]
    assert files == [str(Path.cwd() / "a.toml"), str(Path.cwd() / "b.toml"), str(tmp_path / "config.toml")]
    assert arguments[-4:] == ["--settings", str(Path.cwd() / "s.json"), "--set", "rollout.engine=vllm"]


def test_decisions_are_toml_of_every_kind_of_text(tmp_path: Path) -> None:
    values = {"model": {"student_model_path": 'a "quoted" \\ path\n'}, "proxy": {"port": 18000}}
    path = tmp_path / "config.toml"
    resolution.write(path, values)
    assert tomllib.loads(path.read_text()) == values


def test_context_has_room_for_the_hint_within_the_models_limit(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    assert resolution.context_length(tmp_path, 1024) == 1024 + resolution.HINT_ROOM
    assert resolution.context_length(tmp_path, 2000) == 2048
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CommandError, match=r"model\.student_model_path.*max_position_embeddings"):
        resolution.context_length(tmp_path, 1024)
