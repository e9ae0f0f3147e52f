"""Schemas of the custom resources that the chart makes, as far as it uses them: names, types, what is required.

Written from the documentation of KEDA 2.16, JobSet 0.8 (v1alpha2), the training operator's PyTorchJob (v1) and the
Prometheus operator (v1). A field that is not listed is refused.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
NAMED = {"type": "object", "additionalProperties": False, "required": ["name"], "properties": {"name": TEXT}}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these fields and no other."""
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


#: Checked by Kubernetes' own schema, see :func:`pod_templates`.
POD_TEMPLATE = {"type": "object", "required": ["spec", "metadata"]}

SCALED_OBJECT = closed(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=closed(["name"], apiVersion=TEXT, kind=TEXT, name=TEXT),
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    pollingInterval=COUNT,
    cooldownPeriod=COUNT,
    fallback=closed(["failureThreshold", "replicas"], failureThreshold=COUNT, replicas=COUNT),
    triggers={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["type", "metadata"],
            type={"enum": ["redis-streams", "redis-sentinel-streams", "redis-cluster-streams"]},
            # KEDA takes texts alone.
            metadata=closed(
                ["stream", "streamLength"],
                address=TEXT,
                addresses=TEXT,
                sentinelMaster=TEXT,
                stream=TEXT,
                streamLength={"type": "string", "pattern": "^[1-9][0-9]*$"},
                enableTLS={"enum": ["true", "false"]},
            ),
            authenticationRef=NAMED,
        ),
    },
)
TRIGGER_AUTHENTICATION = closed(
    ["secretTargetRef"],
    secretTargetRef={
        "type": "array",
        "minItems": 1,
        "items": closed(["parameter", "name", "key"], parameter=TEXT, name=TEXT, key=TEXT),
    },
)
JOBSET = closed(
    ["replicatedJobs"],
    network=closed(
        [], enableDNSHostnames={"type": "boolean"}, publishNotReadyAddresses={"type": "boolean"}, subdomain=TEXT
    ),
    failurePolicy=closed([], maxRestarts=COUNT),
    replicatedJobs={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["name", "template"],
            name=TEXT,
            replicas=COUNT,
            template=closed(
                ["spec"],
                spec=closed(
                    ["template"],
                    parallelism=COUNT,
                    completions=COUNT,
                    completionMode={"enum": ["Indexed"]},
                    backoffLimit=COUNT,
                    template=POD_TEMPLATE,
                ),
            ),
        ),
    },
)
PYTORCH_JOB = closed(
    ["pytorchReplicaSpecs"],
    nprocPerNode={"type": "string", "pattern": "^([1-9][0-9]*|auto|gpu|cpu)$"},
    elasticPolicy=closed(
        [], rdzvBackend={"enum": ["c10d", "etcd"]}, minReplicas=COUNT, maxReplicas=COUNT, maxRestarts=COUNT
    ),
    pytorchReplicaSpecs=closed(
        ["Worker"],
        Worker=closed(
            ["template"],
            replicas=COUNT,
            restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
            template=POD_TEMPLATE,
        ),
    ),
)
POD_MONITOR = closed(
    ["selector", "podMetricsEndpoints"],
    jobLabel=TEXT,
    selector={"type": "object"},
    podMetricsEndpoints={
        "type": "array",
        "items": closed(["port"], port=TEXT, interval=TEXT, relabelings={"type": "array", "items": {"type": "object"}}),
    },
)
PROMETHEUS_RULE = closed(
    ["groups"],
    groups={
        "type": "array",
        "items": closed(["name", "rules"], name=TEXT, interval=TEXT, rules={"type": "array", "minItems": 1}),
    },
)

#: By apiVersion and kind.
SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): TRIGGER_AUTHENTICATION,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): JOBSET,
    ("kubeflow.org/v1", "PyTorchJob"): PYTORCH_JOB,
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
}


def pod_templates(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates inside a custom resource."""
    found = []
    if isinstance(manifest, dict):
        for name, value in manifest.items():
            if name == "template" and isinstance(value, dict) and "containers" in value.get("spec", {}):
                found.append(value)
            else:
                found += pod_templates(value)
    elif isinstance(manifest, list):
        for value in manifest:
            found += pod_templates(value)
    return found
