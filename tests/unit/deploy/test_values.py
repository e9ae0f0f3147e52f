"""The chart's values: each is used by a template, what a template uses is there, and the schema knows all of them."""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import Tools
from .test_chart import CHART, CLAIM, WAYS

Values = dict[str, Any]
Key = tuple[str, ...]

TEMPLATES = sorted((CHART / "templates").iterdir())
#: How a template calls a part of the values, and which parts that are.
ALIASES: dict[str, list[str]] = {
    ".engine": ["policyEngine", "prmEngine"],
    "$redis": ["redis"],
    "$volume": ["weights", "checkpoints"],
}
#: Marks of numbers, one for each value. What looks for them where they must not stand has them as a pattern.
NUMBERS = range(701, 840)
#: Ways in which what is chosen, not written down, is chosen otherwise.
CHOSEN_IN = ("as shipped", "cluster, nodes")


@functools.cache
def shipped() -> Values:
    """To be left as they are."""
    values: Values = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


@functools.cache
def schema() -> Values:
    found: Values = json.loads((CHART / "values.schema.json").read_text())
    return found


def schema_of(key: Key) -> Values:
    found = schema()
    for name in key:
        found = found.get("properties", {}).get(name, {})
    return found


def leaves(values: Values, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*key, name))
        else:
            yield (*key, name), value


def is_choice(key: Key, value: Any) -> bool:
    return isinstance(value, bool) or "enum" in schema_of(key)


def batched(items: list[str], size: int) -> list[list[str]]:
    return [items[index : index + size] for index in range(0, len(items), size)]


def with_value(values: Values, key: Key, value: Any) -> Values:
    """``values`` with one more in it; they are left as they are."""
    changed = copy.deepcopy(values)
    part = changed
    for name in key[:-1]:
        part = part.setdefault(name, {})
    part[key[-1]] = value
    return changed


def marked(key: Key, value: Any, number: int) -> tuple[Any, str]:
    """A value that stands nowhere else, and the text by which it is found."""
    mark = f"zq{number}"
    if isinstance(value, int):
        return NUMBERS[number], str(NUMBERS[number])
    if isinstance(value, list):
        return [mark if schema_of(key).get("items", {}).get("type") == "string" else {mark: mark}], mark
    return ({mark: mark}, mark) if isinstance(value, dict) else (mark, mark)


def marks() -> tuple[Values, dict[Key, str]]:
    """All values that are no choices, each marked; and the marks."""
    values: Values = {}
    found = {}
    for number, (key, value) in enumerate(leaves(shipped())):
        if not is_choice(key, value):
            new, found[key] = marked(key, value, number)
            values = with_value(values, key, new)
    return values, found


def as_in(way: str, values: Values) -> Values:
    """``values`` with what is chosen in a way to set the chart."""
    for key, value in leaves(WAYS[way]):
        if is_choice(key, value):
            values = with_value(values, key, value)
    return values


def other(key: Key, value: Any) -> Any:
    """What else may be chosen."""
    if isinstance(value, bool):
        return not value
    return next(choice for choice in reversed(schema_of(key)["enum"]) if choice != value)


@pytest.fixture(scope="module")
def texts(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Values]], list[str]]:
    """What the templates make of values, whatever these are: the schema is left out."""
    chart = tmp_path_factory.mktemp("values") / "hintloop"
    shutil.copytree(CHART, chart)
    (chart / "values.schema.json").unlink()

    def render(asked: list[Values]) -> list[str]:
        script = Path(__file__).with_name("render_chart.py")
        found = json.loads(tools.run("python", script, chart, "text", given=json.dumps(asked)))["rendered"]
        assert [each["error"] for each in found if "error" in each] == []
        return [each["text"] for each in found]

    return render


def test_every_value_is_used(texts: Callable[[list[Values]], list[str]]) -> None:
    assert len(list(leaves(shipped()))) <= len(NUMBERS), "more values than numbers to mark them with"
    values, found = marks()
    assert len(set(found.values())) == len(found)
    plain = texts([CLAIM])[0]
    assert not re.search(r"(?<!\w)(7[0-9]{2}|8[0-3][0-9]|zq\d+)(?!\w)", plain), "a mark's text stands there anyway"
    everything = "\n".join(texts([as_in(way, values) for way in WAYS]))

    unused = [".".join(key) for key, mark in found.items() if not re.search(rf"(?<!\w){mark}(?!\w)", everything)]
    assert unused == []


def test_every_choice_makes_a_difference(texts: Callable[[list[Values]], list[str]]) -> None:
    values: Values = {"redis": {"waitReplicas": 1}}
    for key, value in leaves(marks()[0]):
        # Numbers are as shipped: a policy engine of hundreds of workers takes long to write down.
        if isinstance(value, (str, list)):
            values = with_value(values, key, value)
    ways = [as_in(way, values) for way in CHOSEN_IN]
    choices = [key for key, value in leaves(shipped()) if is_choice(key, value)]
    asked = list(ways)
    for key in choices:
        for way in ways:
            now = dict(leaves(way)).get(key, dict(leaves(shipped()))[key])
            asked.append(with_value(way, key, other(key, now)))
    # By way, one after the other; first as they are.
    before, *after = batched(texts(asked), len(ways))

    assert [".".join(key) for key, made in zip(choices, after, strict=True) if made == before] == []


def used_in(text: str) -> set[Key]:
    found = {tuple(path.split(".")[1:]) for path in re.findall(r"\.Values((?:\.\w+)+)", text)}
    for alias, parts in ALIASES.items():
        for path in re.findall(rf"(?<![\w$.]){re.escape(alias)}((?:\.\w+)+)", text):
            found |= {(part, *path.split(".")[1:]) for part in parts}
    return found


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_what_a_template_uses_is_there(path: Path) -> None:
    missing = []
    for key in used_in(path.read_text()):
        part: Any = shipped()
        for name in key:
            part = part.get(name, KeyError) if isinstance(part, dict) else KeyError
        if part is KeyError:
            missing.append(".".join(key))
    assert missing == []


def test_the_templates_were_understood() -> None:
    """What is looked for is found: most values are named by some template."""
    used = set().union(*(used_in(path.read_text()) for path in TEMPLATES))
    assert len(used) > 60
    assert {part for (part, *_) in used} >= set(shipped()) - {"secrets"}


def test_the_schema_has_the_values_and_no_other() -> None:
    def named(schema: Values, key: Key = ()) -> Iterator[Key]:
        for name, part in schema.get("properties", {}).items():
            yield (*key, name)
            yield from named(part, (*key, name))

    def there(values: Values, key: Key = ()) -> Iterator[Key]:
        for name, value in values.items():
            yield (*key, name)
            # What an empty schema says nothing about is the user's, and Kubernetes'.
            if isinstance(value, dict) and schema_of((*key, name)).get("properties"):
                yield from there(value, (*key, name))

    # Helm's own.
    assert set(named(schema_of(()))) - {("global",)} == set(there(shipped()))
