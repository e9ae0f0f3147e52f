"""The built page belongs to its sources, and says everything in both languages."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.diagnosis.causes import EXPLANATIONS, Cause
from hintloop_contract.messages import DropReason, Stage

WEB = Path(__file__).resolve().parents[3] / "services" / "console" / "web"
STATIC = Path(str(files("hintloop_console"))) / "static"
LEFT_OUT = {"node_modules", ".gitignore"}


def digest(folder: Path, without: tuple[str, ...] = ()) -> str:
    """As ``web/manifest.ts`` computes it."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not LEFT_OUT & set(name.parts) and name.as_posix() not in without:
            found[name.as_posix().encode()] = path
    whole = hashlib.sha256()
    for name in sorted(found):
        whole.update(name + b"\0" + found[name].read_bytes() + b"\0")
    return whole.hexdigest()


def texts(language: str) -> dict[str, Any]:
    words: dict[str, Any] = json.loads((WEB / "src" / "locales" / f"{language}.json").read_text())
    return words


def flat(words: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in words.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def test_the_built_page_is_that_of_the_sources():
    built = json.loads((STATIC / "build.json").read_text())
    assert built == {"sources": digest(WEB), "built": digest(STATIC, ("build.json",))}, "run `make console`"


def test_the_page_loads_only_what_is_in_the_package():
    page = (STATIC / "index.html").read_text()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) >= 3
    assert all((STATIC / name).is_file() for name in loaded)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", page)
    for path in STATIC.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", path.read_text()), path.name


@pytest.mark.parametrize("path", [".npmrc", "package.json", "package-lock.json"])
def test_packages_are_pinned_without_addresses(path: str):
    text = (WEB / path).read_text()
    assert '"resolved"' not in text and "registry" not in text.replace("omit-lockfile-registry-resolved", "")
    if path == "package.json":
        named = json.loads(text)
        versions = [*named["dependencies"].values(), *named["devDependencies"].values()]
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)


def test_both_languages_say_the_same():
    english, chinese = dict(flat(texts("en"))), dict(flat(texts("zh")))
    assert english.keys() == chinese.keys()
    for key, words in english.items():
        places = set(re.findall(r"\{(\w+)\}", words))
        # A plural may leave its number out.
        assert set(re.findall(r"\{(\w+)\}", chinese[key])) == places, key


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_drop_is_explained(language: str):
    words = texts(language)
    assert words["reason"].keys() == {str(reason) for reason in DropReason}
    assert words["at_stage"].keys() == {str(stage) for stage in Stage}
    assert all(one["what"] and one["do"] for one in words["reason"].values())


def test_every_cause_is_explained_in_both_languages():
    chinese = json.loads((WEB / "src" / "locales" / "causes.zh.json").read_text())
    assert list(chinese) == [str(cause) for cause in Cause]
    for cause, english in EXPLANATIONS.items():
        for part, words in (("cause", english.cause), ("fix", english.fix)):
            said = chinese[cause][part]
            assert said.endswith("。") or said.endswith("？"), (cause, said)
            assert re.search(r"[\u4e00-\u9fff]{2}", said), (cause, said)
            # Keys, values and commands are the same in every language.
            named = set(re.findall(r"`[^`]+`|\b[a-z_]+\.[a-z_]+\b|\bHINTLOOP_\w+|--[a-z][a-z-]+", words))
            missing = {name for name in named if name not in said}
            assert not missing, (cause, part, missing)


def test_every_text_is_used():
    sources = "".join(path.read_text() for path in (WEB / "src").rglob("*") if path.suffix in (".ts", ".vue"))
    made_up = set(re.findall(r"[`'](\w+\.(?:\w+_)?)\$\{", sources))
    unused = [key for key, _ in flat(texts("en")) if key not in sources and not key.startswith(tuple(made_up))]
    assert unused == []
