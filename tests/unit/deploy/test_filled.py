"""Dashboards open filled: a real Prometheus with the shipped rules scrapes the services' real registries, and every
panel's query has an answer."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from .conftest import DEPLOY, Tools
from .exported import Exported, exported_by_services
from .test_queries import panel_queries, rules

#: What engines and HAProxy would export, with a value.
FOREIGN = {
    "policy-engine": ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
    "prm": ("haproxy_server_status",),
}
#: Queries that have an answer only while something is the matter.
QUIET = {"changes(hintloop_weights_current[1m]) > 0"}


def foreign_registries() -> dict[str, CollectorRegistry]:
    found = {}
    for job, names in FOREIGN.items():
        registry = CollectorRegistry()
        labels = ("proxy", "server", "state") if job == "prm" else ()
        for name in names:
            gauge = Gauge(name, "of another program", labels, registry=registry)
            (gauge.labels("judge", "judge1", "UP") if labels else gauge).set(1)
        if job == "policy-engine":
            Counter("vllm:generation_tokens", "of another program", registry=registry).inc(5)
        found[job] = registry
    return found


@pytest.fixture
async def targets() -> AsyncIterator[tuple[Exported, dict[str, int]]]:
    """Each registry behind a `/metrics` of its own; ports by job."""
    exported = exported_by_services()
    runners, ports = [], {}
    for job, registry in {**exported.registries, **foreign_registries()}.items():

        async def metrics(_: web.Request, registry: CollectorRegistry = registry) -> web.Response:
            return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        ports[job] = int(runner.addresses[0][1])
    yield exported, ports
    for runner in runners:
        await runner.cleanup()


def configuration(folder: Path, ports: dict[str, int]) -> Path:
    """The shipped files with faster clocks, and targets on this machine instead of names."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(folder / "*.rules.yml")]
    del config["alerting"]
    config["scrape_configs"] = [
        {"job_name": scrape["job_name"], "static_configs": [{"targets": [f"127.0.0.1:{ports[scrape['job_name']]}"]}]}
        for scrape in config["scrape_configs"]
        if scrape["job_name"] in ports
    ]
    for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
        text = yaml.safe_load(path.read_text())
        for group in text["groups"]:
            group["interval"] = "1s"
        (folder / f"{path.stem}.rules.yml").write_text(yaml.safe_dump(text))
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture
def prometheus(tools: Tools, targets: tuple[Exported, dict[str, int]], tmp_path: Path) -> Iterator[int]:
    """A Prometheus of the shipped configuration; its port."""
    if not tools.path("prometheus").exists():
        tools.run("prometheus", "--version")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [
        str(tools.path("prometheus")),
        f"--config.file={configuration(tmp_path, targets[1])}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    yield port
    server.terminate()
    server.wait(20)


async def ask(port: int, path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"

    def read() -> Any:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    return await asyncio.to_thread(read)


async def test_every_panel_has_something_to_show(
    prometheus: int, targets: tuple[Exported, dict[str, int]], tmp_path: Path
) -> None:
    empty = {query: where for where, query in panel_queries() if query not in QUIET}
    try:
        async with asyncio.timeout(90):
            while empty:
                targets[0].exercise()
                await asyncio.sleep(1)
                for query in await answered(prometheus, list(empty)):
                    del empty[query]
    except TimeoutError:
        pytest.fail(f"panels without data: {empty}\n{(tmp_path / 'log').read_text()}", pytrace=False)
    groups = (await ask(prometheus, "/api/v1/rules"))["groups"]
    loaded = [rule for group in groups for rule in group["rules"]]
    assert len(loaded) == len(list(rules()))
    assert [rule["name"] for rule in loaded if rule["health"] == "err"] == []


async def answered(port: int, queries: list[str]) -> list[str]:
    """Those of ``queries`` that have a number; none while the server is not up."""
    found = []
    for query in queries:
        try:
            answer = await ask(port, "/api/v1/query", query=query)
        except OSError:
            return []
        # Shares and quantiles are no number until there was traffic.
        if any(not math.isnan(float(each["value"][1])) for each in answer["result"]):
            found.append(query)
    return found
