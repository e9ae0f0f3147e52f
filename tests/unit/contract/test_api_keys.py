"""Keys: how they are written, looked up and kept out of sight."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
from hintloop_contract.api_keys import KeyIdentity, KeyRing, new_key, presented_key
from hintloop_contract.config import Config, load_config
from hintloop_contract.config.access import key_hash
from hintloop_contract.errors import ConfigError


def ring(keys: Any) -> KeyRing:
    return KeyRing(Config.model_validate({"proxy": {"api_keys": keys}}).proxy.api_keys)


def test_plain_keys_and_hashed_entries_are_looked_up() -> None:
    keys = ring(
        [
            "sesame",
            {"hash": key_hash("acme-key"), "tenant": "acme", "train": False, "name": "ci"},
            {"key": "open-key", "tenant": "beta"},
        ]
    )
    digest = hashlib.sha256(b"sesame").hexdigest()
    assert keys.identify("sesame") == KeyIdentity(digest[:16], "default", True)
    acme = keys.identify(b"acme-key")
    assert acme is not None
    assert (acme.tenant, acme.train) == ("acme", False)
    beta = keys.identify("open-key")
    assert beta is not None and beta.tenant == "beta"
    for wrong in ("", "sesam", "sesamee", "SESAME", digest, key_hash("sesame"), "Bearer sesame"):
        assert keys.identify(wrong) is None


def test_empty_ring_lets_everyone_in_and_tells_clients_apart() -> None:
    keys = KeyRing()
    assert not keys.checks_keys
    assert keys.identify("") == KeyIdentity("", "default", True)
    one, other = keys.identify("a"), keys.identify("b")
    assert one is not None and other is not None and one.credential != other.credential


def test_every_entry_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, compared = ring(["a", "b", "c"]), []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("hintloop_contract.api_keys.hmac", type("Recording", (), {"compare_digest": compare}))
    for presented in ("a", "c", "wrong"):
        compared.clear()
        keys.identify(presented)
        assert len(compared) == 3


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('["a-key", "b-key"]', ("a-key", "b-key")),
        ("a-key, b-key,", ("a-key", "b-key")),
        ("12345", ("12345",)),
        ('[{"key": "c-key", "tenant": "t"}, "d-key"]', ("c-key", "d-key")),
    ],
)
def test_environment_gives_a_list_or_commas(text: str, accepted: tuple[str, ...]) -> None:
    entries = load_config(environ={"HINTLOOP_PROXY__API_KEYS": text}).config.proxy.api_keys
    assert len(entries) == len(accepted)
    assert all(KeyRing(entries).identify(key) for key in accepted)


def test_callers_of_the_prm_are_named_alike_but_are_no_tenants() -> None:
    entries = load_config(environ={"HINTLOOP_PRM__API_KEYS": "a-key, b-key"}).config.prm.api_keys
    assert all(KeyRing(entries).identify(key) for key in ("a-key", "b-key"))
    for change in ('"tenant": "acme"', '"train": false'):
        with pytest.raises(ConfigError, match="have no effect here: the _prm_url routes keep and train nothing"):
            load_config(environ={"HINTLOOP_PRM__API_KEYS": f'[{{"key": "a-key", {change}}}]'})


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('api_keys = [""]', "would let everyone in"),
        ('api_keys = ["  "]', "would let everyone in"),
        ('[[proxy.api_keys]]\nname = "a"', "give either hash"),
        (f'[[proxy.api_keys]]\nkey = "k"\nhash = "{key_hash("k")}"', "and not both"),
        ('[[proxy.api_keys]]\nhash = "sha256:abc"', "64 lower-case hex digits"),
        (f'api_keys = ["{key_hash("k")}"]', "write it as an entry"),
        ('[[proxy.api_keys]]\nkey = "the-key"\ntenant = "a b"', "[0].tenant"),
        ('[[proxy.api_keys]]\nkey = "the-key"\ntennant = "a"', "[0].tennant"),
        ('api_keys = ["the-key", { key = "the-key", tenant = "acme" }]', "keep one of the two"),
        ("api_keys = [5]", "api_keys[0]: each is a key in quotes"),
        ('api_keys = ["sha256:abc"]', "write it as an entry"),
        ('api_keys = ["the-key\\nand more"]', "no header can carry"),
        ('api_keys = { key = "the-key" }', "put it between [ and ]"),
    ],
)
def test_wrong_entries_are_refused_without_showing_the_key(tmp_path: Path, toml: str, said: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(toml if toml.startswith("[[") else f"[proxy]\n{toml}\n")
    with pytest.raises(ConfigError) as caught:
        load_config([file], environ={})
    assert said in str(caught.value)
    assert "proxy.api_keys" in str(caught.value)
    assert "the-key" not in str(caught.value)
    assert key_hash("k") not in str(caught.value)


@pytest.mark.parametrize("text", ['["a-key", "b-key"', '[{"key": "a-key"}', "{'key': 'a-key'}"])
def test_a_list_that_is_no_json_is_no_list_of_odd_keys(text: str) -> None:
    with pytest.raises(ConfigError, match="mend the JSON") as caught:
        load_config(environ={"HINTLOOP_PROXY__API_KEYS": text})
    assert "a-key" not in str(caught.value)


def test_an_empty_variable_does_not_open_the_door() -> None:
    with pytest.raises(ConfigError, match="would let everyone in"):
        load_config(environ={"HINTLOOP_PROXY__API_KEYS": ""})


def test_variables_are_filled_into_entries(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[[proxy.api_keys]]\nkey = "${ALICE_KEY}"\ntenant = "alice"\n')
    identity = KeyRing(load_config([file], environ={"ALICE_KEY": "k1"}).config.proxy.api_keys).identify("k1")
    assert identity is not None and identity.tenant == "alice"
    with pytest.raises(ConfigError, match="ALICE_KEY is not set"):
        load_config([file], environ={})


def test_no_plain_key_and_no_hash_is_shown_or_kept(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[proxy]\napi_keys = ["plain-key", { key = "other-key", tenant = "acme", train = false }]\n')
    loaded = load_config([file], environ={})
    shown = dict((path, value) for path, value, _ in loaded.rows())["proxy.api_keys"]
    assert '"tenant": "acme", "train": false' in shown
    for text in (shown, repr(loaded.config), str(loaded.config.model_dump())):
        for secret in ("plain-key", "other-key", key_hash("plain-key").removeprefix("sha256:")):
            assert secret not in text


def test_key_of_headers() -> None:
    assert presented_key({b"authorization": b"Bearer  k1 "}) == b"k1"
    assert presented_key({b"authorization": b"bearer k1", b"x-api-key": b"k2"}) == b"k1"
    assert presented_key({b"authorization": b"Bearer ", b"x-api-key": b" k2 ", b"api-key": b"k3"}) == b"k2"
    assert presented_key({b"authorization": b"Basic abc", b"x-api-key": b"", b"api-key": b"k3"}) == b"k3"
    assert presented_key({}) == b""


def test_new_keys_differ_and_fit_headers() -> None:
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50
    assert all(key.startswith("hl-") and len(key) == 46 and key.isascii() and " " not in key for key in keys)
