"""The Helm chart: rendered by helm's own library for every way it can be set, checked against Kubernetes' schemas."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hintloop_contract.config.loading import load_config

from .conftest import DEPLOY, ROOT, Tools
from .custom_resources import SCHEMAS, pod_templates

CHART = DEPLOY / "helm" / "hintloop"
CLAIM = {"model": {"claim": "student"}}
SENTINEL = {"mode": "sentinel", "hosts": ["s1:26379", "s2:26379"], "service": "mymaster", "waitReplicas": 1}
CLUSTER = {"mode": "cluster", "hosts": ["c1:6379", "c2:6379"], "tls": True, "waitReplicas": 1}
#: Name of a way to set the chart: its values.
WAYS: dict[str, dict[str, Any]] = {
    "as shipped": CLAIM,
    "sentinel": {**CLAIM, "redis": SENTINEL, "secrets": {"keys": {"sentinelPassword": "sentinel-password"}}},
    "cluster, nodes": {
        **CLAIM,
        "redis": CLUSTER,
        "trainer": {"nodes": 4, "gpusPerNode": 8},
        "policyEngine": {"replicas": 3, "kind": "vllm"},
        "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
    },
    "pytorchjob": {**CLAIM, "trainer": {"kind": "PyTorchJob", "nodes": 2}, "judge": {"keda": {"enabled": False}}},
    "everything": {
        "model": {"claim": "student", "prmClaim": "judge"},
        "redis": {"mode": "external", "hosts": ["r:6379"]},
        "images": {"pullSecrets": ["pull"], "tag": "9"},
        "policyEngine": {"loraRank": 32},
        "secrets": {
            "keys": {
                name: name.lower()
                for name in ("proxyApiKeys", "policyApiKey", "prmApiKey", "judgeApiKey", "consolePassword")
            }
        },
        "networkPolicy": {"agents": [{"namespaceSelector": {"matchLabels": {"agents": "yes"}}}]},
        "monitoring": {"podMonitor": True, "rules": True, "labels": {"release": "p"}, "otlpEndpoint": "http://o:4318"},
    },
    "engine elsewhere": {
        **CLAIM,
        "hintloop": {"enabled": False},
        "prmEngine": {"enabled": False, "url": "https://prm.example/api"},
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no model": ({}, "/model/claim"),
    "a key that is none": ({**CLAIM, "judges": 3}, "judges"),
    "no sentinels": ({**CLAIM, "redis": {"mode": "sentinel", "waitReplicas": 1}}, "redis.hosts is required"),
    "a failover that forgets": (
        {**CLAIM, "redis": {**SENTINEL, "waitReplicas": 0}},
        "waitReplicas has to be at least 1",
    ),
    "a redis without a password": ({**CLAIM, "secrets": {"keys": {"redisPassword": ""}}}, "redisPassword is required"),
    "no engine": ({**CLAIM, "prmEngine": {"enabled": False}}, "prmEngine.url is required"),
    "judges that cannot wake": ({**CLAIM, "judge": {"keda": {"minReplicas": 0}}}, "/judge/keda/minReplicas"),
}

Manifest = dict[str, Any]
#: Of Kubernetes' schemas.
NEWEST = "1.36"


@pytest.fixture(scope="module")
def rendered(tools: Tools) -> dict[str, Any]:
    """What each way gives, by its name; lint's findings under `lint`."""
    script = Path(__file__).with_name("render_chart.py")
    asked = [*WAYS.values(), *(values for values, _ in REFUSED.values())]
    found = json.loads(tools.run("python", script, CHART, given=json.dumps(asked)))
    return {"lint": found["lint"], **dict(zip([*WAYS, *REFUSED], found["rendered"], strict=True))}


@pytest.fixture(params=list(WAYS))
def manifests(rendered: dict[str, Any], request: pytest.FixtureRequest) -> list[Manifest]:
    found: dict[str, Any] = rendered[request.param]
    assert "error" not in found, found
    return list(found["manifests"])


def of(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] in (name, f"demo-{name}")]
    return found


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        for template in pod_templates(manifest):
            yield f"{manifest['kind']} {manifest['metadata']['name']}", template


def test_lint_finds_nothing(rendered: dict[str, Any]) -> None:
    assert rendered["lint"] == []


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_is_refused_with_the_reason(rendered: dict[str, Any], name: str) -> None:
    assert REFUSED[name][1] in rendered[name]["error"]


@pytest.mark.parametrize("version", ["1.29", NEWEST])
def test_every_manifest_is_what_kubernetes_takes(
    rendered: dict[str, Any], tools: Tools, tmp_path: Path, version: str
) -> None:
    native: dict[str, Manifest] = {}
    for way in WAYS if version == NEWEST else ("as shipped",):
        for manifest in rendered[way]["manifests"]:
            if (manifest["apiVersion"], manifest["kind"]) not in SCHEMAS:
                native[json.dumps(manifest, sort_keys=True)] = manifest
                continue
            # The pods of a custom resource, as those of a Job.
            for template in pod_templates(manifest):
                job = {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "metadata": {"name": "j"},
                    "spec": {"template": template},
                }
                native[json.dumps(job, sort_keys=True)] = job
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(native.values()))
    tools.run("kubernetes-validate", "--strict", "--quiet", "-k", version, file)


def test_custom_resources_have_the_fields_of_their_kinds(rendered: dict[str, Any], tools: Tools) -> None:
    pairs, seen = [], set()
    for way in WAYS:
        for manifest in rendered[way]["manifests"]:
            kind = (manifest["apiVersion"], manifest["kind"])
            if kind in SCHEMAS:
                pairs.append([SCHEMAS[kind], manifest["spec"]])
                seen.add(kind)
            else:
                assert "." not in kind[0].split("/")[0] or "k8s.io" in kind[0], kind
    assert seen == set(SCHEMAS)
    script = "import json, sys, jsonschema\nfor schema, spec in json.load(sys.stdin): jsonschema.validate(spec, schema)"
    tools.run("python", "-c", script, given=json.dumps(pairs))


def test_the_same_services_as_in_compose(manifests: list[Manifest]) -> None:
    found = {m["metadata"]["labels"]["app.kubernetes.io/component"] for m in manifests if pod_templates(m)}
    always = {"rollout-proxy", "prm", "judge", "teacher", "trainer", "policy-engine", "console"}
    assert always <= found <= always | {"redis", "prm-engine", "hintloop"}


def test_pods_are_nobody_without_rights(manifests: list[Manifest]) -> None:
    for where, template in pods(manifests):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0, where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert spec["automountServiceAccountToken"] is False, where
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"], where
            assert context["capabilities"] == {"drop": ["ALL"]}, where
            assert {"requests", "limits"} <= set(container["resources"]), where
            assert "memory" in container["resources"]["limits"], where


def test_long_running_pods_are_probed(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] not in ("Deployment", "StatefulSet"):
            continue
        # It serves nothing.
        if manifest["metadata"]["name"] == "demo-hintloop":
            continue
        for container in manifest["spec"]["template"]["spec"]["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container), manifest["metadata"]["name"]


def test_images_are_pinned(manifests: list[Manifest]) -> None:
    for where, template in pods(manifests):
        for container in template["spec"]["containers"]:
            assert re.fullmatch(r"[\w./-]+:v?[\w.-]*\d[\w.-]*", container["image"]), f"{where}: {container['image']}"


def test_secrets_are_referenced_and_mounted_as_files(manifests: list[Manifest]) -> None:
    assert not [m for m in manifests if m["kind"] == "Secret"]
    for where, template in pods(manifests):
        files = {item["key"] for v in template["spec"]["volumes"] for item in v.get("secret", {}).get("items", [])}
        for container in template["spec"]["containers"]:
            for variable in container.get("env", []):
                assert "valueFrom" not in variable, where
                if variable["name"].endswith("_FILE"):
                    assert Path(variable["value"]).name in files, f"{where}: {variable['name']}"


def test_the_configuration_loads(manifests: list[Manifest], tmp_path: Path) -> None:
    files = of(manifests, "ConfigMap", "config")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    loaded = load_config(
        [tmp_path / "config.toml", tmp_path / "kubernetes.toml"],
        settings=[tmp_path / "settings.json"],
        environ={"REDIS_PASSWORD": "p"},
    ).config
    engine = of(manifests, "StatefulSet", "policy-engine")
    assert len(loaded.engine_urls) == engine["spec"]["replicas"]
    for number, url in enumerate(loaded.engine_urls):
        assert url == f"http://demo-policy-engine-{number}.{engine['spec']['serviceName']}:30000"
    assert loaded.rollout.engine == engine["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert loaded.prm.grpc_address == f"{of(manifests, 'Service', 'prm')['metadata']['name']}:18011"


def test_ports_of_the_configuration_are_those_of_the_pods(manifests: list[Manifest]) -> None:
    settings = tomllib.loads(of(manifests, "ConfigMap", "config")["data"]["kubernetes.toml"])
    wanted = {
        "rollout-proxy": {settings["proxy"]["port"]},
        "judge": {settings["prm"]["port"]},
        "teacher": {settings["prm"]["port"], settings["prm"]["grpc_port"]},
        "console": {settings["console"]["port"]},
    }
    for where, template in pods(manifests):
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        ports = {port["containerPort"] for port in template["spec"]["containers"][0].get("ports", ())}
        assert wanted.get(component, ports) == ports, where
        if component == "trainer":
            assert settings["metrics"]["port"] in ports


def test_volumes_that_are_mounted_are_there(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        for template in pod_templates(manifest):
            claims = manifest["spec"].get("volumeClaimTemplates", [])
            there = {v["name"] for v in template["spec"].get("volumes", [])} | {c["metadata"]["name"] for c in claims}
            for container in template["spec"]["containers"]:
                mounted = [mount["name"] for mount in container["volumeMounts"]]
                assert set(mounted) <= there, f"{manifest['metadata']['name']}: {set(mounted) - there}"
            maps = [v["configMap"]["name"] for v in template["spec"].get("volumes", []) if "configMap" in v]
            for name in maps:
                assert of(manifests, "ConfigMap", name.removeprefix("demo-"))


def test_trainer_and_engines_share_the_weights(manifests: list[Manifest]) -> None:
    claim = of(manifests, "PersistentVolumeClaim", "weights")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    mounted = {}
    for where, template in pods(manifests):
        for volume in template["spec"].get("volumes", []):
            if volume.get("persistentVolumeClaim", {}).get("claimName") == "demo-weights":
                (mount,) = [m for m in template["spec"]["containers"][0]["volumeMounts"] if m["name"] == volume["name"]]
                mounted[where.split()[1]] = (mount["mountPath"], mount.get("readOnly", False))
    assert mounted.pop("demo-hintloop", None) in (None, ("/weights", True))
    assert mounted == {"demo-policy-engine": ("/weights", True), "demo-trainer": ("/weights", False)}


def test_network_policies_let_in_who_has_to(manifests: list[Manifest]) -> None:
    policies = {
        m["metadata"]["name"].removeprefix("demo-"): m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"
    }
    assert policies["deny"]["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in policies["deny"]

    def callers(component: str, port: int) -> set[str]:
        found = set()
        for rule in policies[component]["ingress"]:
            if "ports" in rule and port not in [entry["port"] for entry in rule["ports"]]:
                continue
            found |= {
                source["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                for source in rule.get("from", [])
                if source.get("podSelector", {}).get("matchLabels")
            }
        return found

    assert callers("policy-engine", 30000) == {"rollout-proxy", "teacher", "trainer", "console", "hintloop"}
    assert callers("judge", 18010) == callers("teacher", 18011) == {"prm"}
    assert callers("prm", 18011) == {"trainer", "console", "hintloop"}
    assert callers("trainer", 18030) == {"trainer"}
    if "redis" in policies:
        assert callers("redis", 6379) == {"rollout-proxy", "judge", "teacher", "trainer", "console", "hintloop"}
    for component, policy in policies.items():
        if component not in ("rollout-proxy", "console", "deny"):
            assert all(rule.get("from") for rule in policy["ingress"]), f"everybody reaches {component}"


def test_judges_follow_the_stream(rendered: dict[str, Any]) -> None:
    wanted: dict[str, tuple[str, Callable[[Manifest], str], str]] = {
        "as shipped": ("redis-streams", lambda m: m["address"], "demo-redis.rl.svc:6379"),
        "sentinel": (
            "redis-sentinel-streams",
            lambda m: m["addresses"] + m["sentinelMaster"],
            "s1:26379,s2:26379mymaster",
        ),
        "cluster, nodes": ("redis-cluster-streams", lambda m: m["addresses"] + m["enableTLS"], "c1:6379,c2:6379true"),
    }
    for way, (kind, read, told) in wanted.items():
        manifests = rendered[way]["manifests"]
        scaled = of(manifests, "ScaledObject", "judge")["spec"]
        (trigger,) = scaled["triggers"]
        assert (trigger["type"], read(trigger["metadata"])) == (kind, told)
        assert trigger["metadata"]["stream"] == "hl:{default}:turns"
        deployment = of(manifests, "Deployment", scaled["scaleTargetRef"]["name"])
        assert "replicas" not in deployment["spec"], "helm and KEDA would both set it"
    assert of(rendered["pytorchjob"]["manifests"], "Deployment", "judge")["spec"]["replicas"] == 2


def test_several_nodes_meet(rendered: dict[str, Any]) -> None:
    job = of(rendered["cluster, nodes"]["manifests"], "JobSet", "trainer")
    (replicated,) = job["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert spec["parallelism"] == spec["completions"] == 4
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    arguments = container["args"]
    # The name that JobSet gives to the first pod: <set>-<job>-<job's index>-<pod's index>.<subdomain>.
    first = f"{job['metadata']['name']}-{replicated['name']}-0-0.{job['spec']['network']['subdomain']}"
    assert f"--rdzv_endpoint={first}:29400" in arguments
    assert {"--nnodes=4", "--nproc_per_node=8", "--rdzv_backend=c10d"} <= set(arguments)
    assert arguments[-2:] == ["-m", "hintloop_trainer"]
    torch = of(rendered["pytorchjob"]["manifests"], "PyTorchJob", "trainer")["spec"]
    assert torch["elasticPolicy"]["minReplicas"] == torch["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    assert torch["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] == "pytorch"


def test_engines_are_started_by_the_repository_own_scripts(rendered: dict[str, Any]) -> None:
    manifests = rendered["as shipped"]["manifests"]
    data = of(manifests, "ConfigMap", "engines")["data"]
    (volume,) = [
        v
        for v in of(manifests, "StatefulSet", "policy-engine")["spec"]["template"]["spec"]["volumes"]
        if v["name"] == "engines"
    ]
    for item in volume["configMap"]["items"]:
        path = DEPLOY / "engines" / "serve.sh" if item["path"] == "serve.sh" else ROOT / "engines" / item["path"]
        assert data[item["key"]] == path.read_text(), item
    assert len(volume["configMap"]["items"]) == len(data)


def test_an_engine_uses_all_its_cards(rendered: dict[str, Any]) -> None:
    for way, flag in {"as shipped": "--tp-size", "cluster, nodes": "--tensor-parallel-size"}.items():
        pod = of(rendered[way]["manifests"], "StatefulSet", "policy-engine")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        cards = str(container["resources"]["limits"]["nvidia.com/gpu"])
        assert container["args"] == [flag, cards]


def test_policy_engines_have_room_for_adapters_where_a_rank_is_given(rendered: dict[str, Any]) -> None:
    def ranks(way: str) -> dict[str, str | None]:
        found = {}
        for manifest in rendered[way]["manifests"]:
            if manifest["metadata"]["name"] in ("demo-policy-engine", "demo-prm-engine") and pod_templates(manifest):
                (container,) = manifest["spec"]["template"]["spec"]["containers"]
                told = {variable["name"]: variable["value"] for variable in container["env"]}
                found[manifest["metadata"]["name"]] = told.get("HINTLOOP_LORA_RANK")
        return found

    assert ranks("everything") == {"demo-policy-engine": "32", "demo-prm-engine": None}
    assert ranks("as shipped") == {"demo-policy-engine": None, "demo-prm-engine": None}
    assert "HINTLOOP_LORA_RANK" in (ROOT / "engines/sglang/start.sh").read_text()
    assert "HINTLOOP_LORA_RANK" in (ROOT / "engines/vllm/start.sh").read_text()


def test_commands_run_in_the_trainers_image(rendered: dict[str, Any]) -> None:
    manifests = rendered["as shipped"]["manifests"]
    (container,) = of(manifests, "Deployment", "demo-hintloop")["spec"]["template"]["spec"]["containers"]
    (trainer,) = of(manifests, "JobSet", "trainer")["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]["containers"]
    assert container["image"] == trainer["image"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]


def test_the_console_runs_no_doctor_that_its_image_lacks(manifests: list[Manifest]) -> None:
    (container,) = of(manifests, "StatefulSet", "console")["spec"]["template"]["spec"]["containers"]
    assert {"name": "HINTLOOP_CONSOLE__DOCTOR_COMMAND", "value": "[]"} in container["env"]


def test_commands_find_the_services(rendered: dict[str, Any]) -> None:
    manifests = rendered["as shipped"]["manifests"]
    (container,) = of(manifests, "Deployment", "demo-hintloop")["spec"]["template"]["spec"]["containers"]
    told = {variable["name"]: variable["value"] for variable in container["env"]}
    for section, component in {"PROXY": "rollout-proxy", "PRM": "prm"}.items():
        service = of(manifests, "Service", component)
        assert told[f"HINTLOOP_{section}__HOST"] == service["metadata"]["name"]
    assert told["HINTLOOP_PROXY__PORT"] == str(of(manifests, "Service", "rollout-proxy")["spec"]["ports"][0]["port"])
    assert not [m for m in rendered["engine elsewhere"]["manifests"] if m["metadata"]["name"] == "demo-hintloop"]


def test_rules_are_those_of_compose(rendered: dict[str, Any]) -> None:
    groups = of(rendered["everything"]["manifests"], "PrometheusRule", "demo")["spec"]["groups"]
    shipped = []
    for name in ("recording.yml", "alerts.yml"):
        shipped += yaml.safe_load((DEPLOY / "prometheus" / "rules" / name).read_text())["groups"]
    assert groups == shipped
