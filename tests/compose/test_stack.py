"""The shipped compose file, started: order, wiring, secrets, scaling, crashes under traffic. The tests go in order."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import tomllib
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.compose.account import Account, captures_of, take_account
from tests.compose.stack import PROJECT, Stack, eventually, run
from tests.compose.traffic import EXCHANGES, Traffic

pytestmark = pytest.mark.timeout(400)

#: What may end otherwise than by being trained, and rightly: a session's last exchange has no next state, a trainer
#: that is killed over a release leaves answers by weights that nobody has, and an answer that was stored as its proxy
#: was killed is asked for again.
RIGHT_ENDS = {"no_next_state", "orphan_version", "retry"}
TRAINING = tomllib.loads((Path(__file__).parent / "config" / "config.toml").read_text())["training"]
JUDGE_ADDRESSES = """
import json, socket
print(json.dumps(sorted({entry[4][0] for entry in socket.getaddrinfo("judge", 18010, type=socket.SOCK_STREAM)})))
"""
JUDGES_IN_USE = """
import json, re, urllib.request
page = urllib.request.urlopen("http://prm:8405/metrics", timeout=5).read().decode()
print(json.dumps(int(float(re.search(r'^haproxy_backend_active_servers{proxy="judge"} (\\S+)', page, re.M)[1]))))
"""


def started(container: dict) -> datetime:
    return datetime.fromisoformat(container["State"]["StartedAt"][:26].rstrip("Z") + "+00:00")


def first_healthy(container: dict) -> datetime:
    """When its first good healthcheck ended, of those that Docker remembers."""
    checks = container["State"]["Health"]["Log"]
    return min(datetime.fromisoformat(check["End"][:26] + "+00:00") for check in checks if check["ExitCode"] == 0)


def test_everything_is_healthy(up: Stack) -> None:
    states = {
        container["Name"].strip("/"): container["State"].get("Health", {}).get("Status")
        for container in up.containers()
    }

    assert set(states.values()) == {"healthy"}, states
    services = {container["Config"]["Labels"]["com.docker.compose.service"] for container in up.containers()}
    assert services == set(up.services())


def test_what_is_needed_was_healthy_first(up: Stack) -> None:
    services = up.services()
    late = []
    for name, service in services.items():
        for needed in service.get("depends_on", {}):
            if needed not in services:
                continue
            before = [first_healthy(container) for container in up.containers(needed)]
            if len(before) and min(map(started, up.containers(name))) < max(map(started, up.containers(needed))):
                late.append((name, needed))
            if not before:
                late.append((name, needed))

    assert late == []
    assert services["trainer"]["depends_on"]["policy-engine"]["condition"] == "service_healthy"


def test_published_are_the_proxys_the_consoles_and_grafanas_port(up: Stack) -> None:
    published = {
        (
            container["Config"]["Labels"]["com.docker.compose.service"],
            inside,
            binding["HostIp"],
            int(binding["HostPort"]),
        )
        for container in up.containers()
        for inside, bindings in container["NetworkSettings"]["Ports"].items()
        for binding in bindings or ()
    }

    assert published == {
        ("rollout-proxy", "18000/tcp", "127.0.0.1", up.ports["PROXY_PORT"]),
        ("console", "8080/tcp", "127.0.0.1", up.ports["CONSOLE_PORT"]),
        ("grafana", "3000/tcp", "127.0.0.1", up.ports["GRAFANA_PORT"]),
    }
    for port in up.ports.values():
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_no_secret_is_in_what_docker_shows(up: Stack) -> None:
    shown = json.dumps(up.containers()) + run("docker", "ps", "-a", "--no-trunc")
    processes = "".join(run("docker", "top", container["Id"]) for container in up.containers())

    for name, value in {**up.secrets, "redis_password": up.redis_password}.items():
        assert value not in shown, name
        assert value not in processes, name


def test_secrets_are_in_force(up: Stack) -> None:
    asked = {"model": "policy", "messages": [{"role": "user", "content": "Hello."}]}
    url = f"{up.proxy_url}/v1/chat/completions"

    assert httpx.post(url, json=asked).status_code == 401
    assert up.compose("exec", "-T", "redis", "redis-cli", "ping").strip().startswith("NOAUTH")
    assert httpx.get(f"http://127.0.0.1:{up.ports['CONSOLE_PORT']}/api/v1/me").json()["password_set"] is True


def test_redis_keeps_everything_and_gives_nothing_up(up: Stack) -> None:
    script = 'REDISCLI_AUTH="$(cat /run/hintloop/redis_password)" redis-cli config get "*"'
    lines = up.compose("exec", "-T", "redis", "sh", "-c", script).split("\n")
    settings = dict(zip(lines[::2], lines[1::2], strict=False))

    found = {name: settings[name] for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    assert found == {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


def test_containers_are_nobody_on_a_root_that_cannot_be_written(up: Stack) -> None:
    for container in up.containers():
        name, host = container["Name"], container["HostConfig"]
        assert container["Config"]["User"].split(":")[0] not in ("", "0", "root"), name
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["Privileged"], name
        assert host["Memory"] > 0, name
        assert host["PidsLimit"] > 0, name
        assert host["LogConfig"]["Config"].keys() == {"max-size", "max-file"}, name
        assert host["RestartPolicy"]["Name"] == "unless-stopped", name


def test_cards_go_where_the_variables_say(up: Stack) -> None:
    def cards(service: str) -> str:
        # Docker adds it to the first process, not to what `exec` starts.
        environment = Path(f"/proc/{up.containers(service)[0]['State']['Pid']}/environ").read_text()
        return dict(line.split("=", 1) for line in environment.split("\0") if line)["NVIDIA_VISIBLE_DEVICES"]

    found = {service: cards(service) for service in ("trainer", "policy-engine", "prm-engine")}
    assert found == {"trainer": "0,1,2,3", "policy-engine": "11,5", "prm-engine": "6,7"}


def test_inside_there_is_no_way_out(up: Stack) -> None:
    networks = json.loads(run("docker", "network", "inspect", f"{PROJECT}_inside", f"{PROJECT}_public"))
    public = {entry["Name"] for entry in networks[1]["Containers"].values()}

    assert networks[0]["Internal"] is True
    assert {re.sub(rf"^{PROJECT}-|-\d+$", "", name) for name in public} == {"rollout-proxy", "console", "grafana"}


def test_doctor_runs_inside(up: Stack, traffic: Traffic) -> None:
    traffic.more(10)
    said = up.compose("run", "--rm", "-T", "hintloop", "doctor", "--json", check=False)

    report = json.loads(said)
    found = {finding["check"]: finding["outcome"] for station in report["stations"] for finding in station["findings"]}
    # `loss` is computed: the command is in the trainer's image.
    wanted = ("redis", "proxy", "policy engine", "judge and teacher", "trainer", "loss")
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, "ok"), said
    for secret in (*up.secrets.values(), up.redis_password):
        assert secret not in said


@pytest.mark.parametrize("count", [3, 5, 1])
def test_judges_join_and_leave_under_traffic(up: Stack, traffic: Traffic, count: int) -> None:
    before = len(traffic.refused)
    up.compose("up", "-d", "--no-build", "--no-recreate", "--wait", "--scale", f"judge={count}", "judge")

    addresses = up.python("teacher", JUDGE_ADDRESSES)
    own = {
        container["NetworkSettings"]["Networks"][f"{PROJECT}_inside"]["IPAddress"]
        for container in up.containers("judge")
    }
    assert set(addresses) == own
    assert len(own) == count
    eventually(lambda: up.python("teacher", JUDGES_IN_USE), lambda found: found == count, "judges behind prm", 30)
    traffic.more(20)
    assert len(traffic.refused) == before


@pytest.mark.parametrize("service", ["redis", "judge", "teacher", "rollout-proxy", "trainer"])
def test_a_crash_under_traffic(up: Stack, traffic: Traffic, service: str) -> None:
    before = len(traffic.refused)
    container = up.kill(service)
    up.wait_restarted(container)
    traffic.more(20)

    # Only the proxy is seen to be away.
    if service != "rollout-proxy":
        assert traffic.refused[before:] == []


def test_nothing_was_lost_and_nothing_doubled(up: Stack, traffic: Traffic) -> None:
    traffic.end()
    # The last answer of a session has no next state, and waits for the session's timeout; so does one that was stored
    # and never seen.
    last = len(traffic.answered - traffic.followed) + traffic.cut
    eventually(
        lambda: captures_of(up, unlinked(take_account(up), traffic.followed)),
        lambda left: left == {},
        "exchanges without a turn, and their captures",
        150,
    )
    account = eventually(lambda: take_account(up), lambda found: settled(found, last), "turns under way", 150)

    assert account.lengths["dead"] == 0
    doubled = {mark: turns for mark, turns in turns_of(account).items() if len(turns) > 1}
    repeated = {turn: number for turn, number in account.ends().items() if number > 1}
    assert repeated == {}, f"turns with several ends; {len(account.trained)} trained"
    assert account.num_trained == len(account.trained) == len(set(account.trained))
    assert unlinked(account, traffic.followed) == set()
    ended = account.ends().keys()
    lost = {turn: marks for turn, marks in account.marks.items() if turn not in ended}
    assert lost == {}
    wrong = [(turn, reason, account.marks.get(turn)) for turn, reason in account.drops if reason not in RIGHT_ENDS]
    assert wrong == []
    assert doubled == {}
    assert len(account.trained) > 100
    assert len(traffic.followed) > 5 * EXCHANGES


def unlinked(account: Account, followed: set[str]) -> set[str]:
    """Exchanges of which no turn came yet."""
    return followed - turns_of(account).keys()


def settled(account: Account, last: int) -> bool:
    """Nothing is on its way any more but ``last`` answers without a next state, and what does not fill a batch.

    A batch that is trained while the next checkpoint is not due waits for it too.
    """
    all_linked = account.lengths["captures"] <= last and account.under_way == 0
    held = TRAINING["save_interval"] * TRAINING["train_batch_size"]
    return all_linked and len(account.waiting_untrained) < held and bool(account.trained)


def turns_of(account: Account) -> dict[str, list[str]]:
    """Turn ids by the exchange that they stand for."""
    found: dict[str, list[str]] = {}
    for turn, marks in account.marks.items():
        for mark in marks:
            found.setdefault(mark, []).append(turn)
    return found


def test_down_leaves_nothing(up: Stack, traffic: Traffic) -> None:
    traffic.end()
    up.keep_logs(Path(os.environ["HINTLOOP_COMPOSE_LOGS"]))
    began = time.monotonic()
    up.compose("down", "-v", "--timeout", "60")

    assert time.monotonic() - began < 90
    assert up.containers() == []
    label = f"label=com.docker.compose.project={PROJECT}"
    assert run("docker", "volume", "ls", "-q", "--filter", label) == ""
    assert run("docker", "network", "ls", "-q", "--filter", label) == ""
    # These two are the engine's own.
    assert set(os.listdir(up.volume("trainer").parent.parent)) <= {"backingFsBlockDev", "metadata.db"}
