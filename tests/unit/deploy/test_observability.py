"""The shipped configuration of Prometheus and Alertmanager, checked by their own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .conftest import DEPLOY


def test_rules_and_their_unit_tests(tools: Any) -> None:
    rules = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    assert "SUCCESS" in tools.run("promtool", "check", "rules", "--lint-fatal", *rules)
    assert "SUCCESS" in tools.run("promtool", "test", "rules", Path(__file__).with_name("alerts.test.yml"))


def test_the_scrape_configuration(tools: Any, tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    local = tmp_path / "prometheus.yml"
    local.write_text(text.replace("/etc/prometheus/rules", str(DEPLOY / "prometheus" / "rules")))
    assert "rule files found" in tools.run("promtool", "check", "config", local)


def test_what_is_scraped_are_services_of_the_compose_file() -> None:
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    names = set(compose["services"]) | {
        alias
        for service in compose["services"].values()
        if isinstance(service.get("networks"), dict)
        for network in service["networks"].values()
        for alias in (network or {}).get("aliases", [])
    }
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for scrape in config["scrape_configs"]:
        for found in scrape.get("dns_sd_configs", []):
            assert set(found["names"]) <= names, scrape["job_name"]
    for found in config["alerting"]["alertmanagers"][0]["dns_sd_configs"]:
        assert set(found["names"]) <= names


def test_alertmanager(tools: Any) -> None:
    assert "SUCCESS" in tools.run("amtool", "check-config", DEPLOY / "alertmanager" / "alertmanager.yml")


def test_the_collector_joins_what_it_defines() -> None:
    config = yaml.safe_load((DEPLOY / "otel" / "collector.yml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
    assert set(config["service"]["extensions"]) == set(config["extensions"])
