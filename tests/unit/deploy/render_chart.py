"""Renders a chart by helm's own library. Reads a JSON list of values, writes for each `{"manifests": [...]}` or
`{"error": text}`; the chart's folder is the argument. With a second one, `text`, each is `{"text": all files}`, and
nothing else is looked at.

Runs in the environment of `scripts/deploy-tools.sh`, which alone has the library. Contacts nothing.
"""

import json
import sys

import helm_python as helm
import yaml


class Strict(yaml.SafeLoader):
    """Refuses a mapping that has a key twice: the later one would win without a word."""


def mapping(loader: Strict, node: yaml.MappingNode) -> dict[object, object]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    double = {str(key) for key in keys if keys.count(key) > 1}
    if double:
        raise ValueError(f"line {node.start_mark.line + 1}: keys given twice: {sorted(double)}")
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def files_of(folder: str, values: dict[str, object]) -> dict[str, str]:
    with helm.Chart.load(folder) as chart:
        files: dict[str, str] = chart.render(values, name="demo", namespace="rl")
    return files


def render(folder: str, values: dict[str, object]) -> dict[str, object]:
    try:
        files = files_of(folder, values)
    except helm.HelmError as error:
        return {"error": str(error)}
    if sys.argv[2:] == ["text"]:
        return {"text": "\n".join(f"# {name}\n{text}" for name, text in sorted(files.items()))}
    manifests = []
    for name, text in sorted(files.items()):
        if name.endswith(".yaml"):
            manifests += [document for document in yaml.load_all(text, Loader=Strict) if document]
    return {"manifests": manifests}


def lint(folder: str) -> list[str]:
    report = helm.lint(folder, {"model": {"claim": "student"}}, strict=True, kube_version="v1.30.0")
    return [found["error"] for found in report["messages"] if found["severity"] > 1] + report["errors"]


rendered = [render(sys.argv[1], values) for values in json.load(sys.stdin)]
json.dump({"lint": [] if sys.argv[2:] else lint(sys.argv[1]), "rendered": rendered}, sys.stdout)
