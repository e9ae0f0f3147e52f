"""Queries of dashboards and rules name metrics, labels and values that the services really export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import DEPLOY, ROOT
from .exported import SOMETIMES, VALUES, Exported

#: Metrics of others, by the pattern of their names; labels of theirs are not checked.
FOREIGN = re.compile(r"haproxy_server_status|(vllm|sglang):[a-z_]+")
#: Of the engines' those that dashboards may use: read in vLLM 0.32.0 and SGLang 0.5.23.
ENGINES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:generation_tokens_total",
}
#: Given by Prometheus to everything that it scrapes.
TARGET_LABELS = {"job", "instance"}


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule.get('alert') or rule['record']}", rule


def dashboards() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        yield path, json.loads(path.read_text())


def panel_queries() -> Iterator[tuple[str, str]]:
    for path, board in dashboards():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for annotation in board["annotations"]["list"]:
            yield f"{path.name}: annotation {annotation['name']}", annotation["expr"]


def recorded() -> set[str]:
    return {rule["record"] for _, rule in rules() if "record" in rule}


def jobs() -> set[str]:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    return {scrape["job_name"] for scrape in config["scrape_configs"]}


def problems_of(name: str | None, matchers: list[tuple[str, str, str]], exported: Exported) -> list[str]:
    """What is wrong with one selector."""
    if name is None:
        (names,) = [value for label, _, value in matchers if label == "__name__"]
        return [f"{each} is no metric of an engine" for each in names.split("|") if each not in ENGINES]
    if name == "up":
        found = [value for label, _, value in matchers if label == "job"]
        return [f"no job {job}" for values in found for job in values.split("|") if job not in jobs()]
    if FOREIGN.fullmatch(name) or name in recorded():
        return []
    if name not in exported.names:
        return [f"nobody exports {name}"]
    problems = []
    for label, op, value in matchers:
        if label not in exported.names[name] | TARGET_LABELS:
            problems.append(f"{name} has no label {label}")
        elif label in VALUES and op in ("=", "=~", "!=", "!~"):
            problems += [f"no {label} {each}" for each in value.split("|") if each not in VALUES[label]]
    return problems


def test_every_query_names_what_is_exported(selectors_of: Any, exported: Exported) -> None:
    queries = [*panel_queries(), *((where, rule["expr"]) for where, rule in rules())]
    assert len(queries) > 90
    wrong = []
    for (where, _), found in zip(queries, selectors_of([expression for _, expression in queries]), strict=True):
        assert found, where
        for name, matchers in found:
            wrong += [f"{where}: {problem}" for problem in problems_of(name, matchers, exported)]
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("rate(hintloop_proxy_requests[1m])", "nobody exports hintloop_proxy_requests"),
        ('hintloop_drops_total{cause="stale"}', "hintloop_drops_total has no label cause"),
        ('sum(hintloop_drops_total{reason=~"stale|old"})', "no reason old"),
        ('absent(up{job="judges"})', "no job judges"),
        ('{__name__=~"vllm:running"}', "vllm:running is no metric of an engine"),
    ],
)
def test_a_wrong_query_is_noticed(selectors_of: Any, exported: Exported, expression: str, said: str) -> None:
    (found,) = selectors_of([expression])
    assert [problem for name, matchers in found for problem in problems_of(name, matchers, exported)] == [said]


def test_what_groups_by_a_label_groups_by_one_that_is_there(exported: Exported, selectors_of: Any) -> None:
    for where, expression in panel_queries():
        (found,) = selectors_of([expression])
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        for name, _ in found:
            if name in exported.names and "instance" not in labels:
                known = exported.names[name] | TARGET_LABELS
                assert labels <= known, f"{where}: {labels - known}"


def test_figures_that_only_some_steps_have_are_made_somewhere() -> None:
    for name, path in SOMETIMES.items():
        assert name.split("_", 1)[-1] in (ROOT / path).read_text(), name


def test_dashboards_are_read_by_the_datasource_that_is_provisioned() -> None:
    (first, *_) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    identities, panels = set(), 0
    for _, board in dashboards():
        identities.add(board["uid"])
        cells: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            covered = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24 and not covered & cells, f"{board['title']}: {panel['title']}"
            cells |= covered
            panels += 1
            for target in panel.get("targets", []):
                assert target["datasource"]["uid"] == first["uid"] == panel["datasource"]["uid"]
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert identities == {"hintloop-loop", "hintloop-learning", "hintloop-engines"}
    assert panels > 50


def test_alerts_say_what_and_what_to_do() -> None:
    asked_for = {
        "HintloopNoSamples",
        "HintloopDropShare",
        "HintloopJudgeFailures",
        "HintloopStaleness",
        "HintloopTrainerEngineGap",
        "HintloopEntropyCollapse",
        "HintloopEntropyRise",
        "HintloopStreamLag",
        "HintloopSpoolInUse",
        "HintloopEngineVersions",
    }
    alerts = {rule["alert"]: rule for _, rule in rules() if "alert" in rule}
    assert asked_for <= set(alerts)
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert {"summary", "description"} == set(rule["annotations"]), name
    tested = (Path(__file__).with_name("alerts.test.yml")).read_text()
    assert [name for name in asked_for if name not in tested] == []
