"""Who may write, and what keeps others from it."""

import json

import pytest
from hintloop_console import access
from hintloop_console.access import Access, Attempts, check_host, check_origin
from hintloop_console.errors import RequestError
from hintloop_contract.config import load_config
from hintloop_contract.config.console import ConsoleSection
from hintloop_contract.errors import ConfigError


def section(**values) -> ConsoleSection:
    return ConsoleSection.model_validate({"password": "correct horse", **values})


def status_of(function, *arguments) -> int:
    with pytest.raises(RequestError) as caught:
        function(*arguments)
    return caught.value.status


def test_the_password_signs_in_and_another_does_not(store):
    door = Access(section(), store)
    cookie = door.sign_in("1.2.3.4", "correct horse")
    assert door.signed_in(cookie)
    door.check_write(cookie)
    assert status_of(door.sign_in, "1.2.3.4", "correct Horse") == 401
    assert status_of(door.sign_in, "1.2.3.4", "\ud83d") == 401
    # The last letter of a signature holds fewer bits than a letter can: some of its neighbours mean the same.
    first = cookie.rindex(".") + 1
    changed = cookie[:first] + ("A" if cookie[first] != "A" else "B") + cookie[first + 1 :]
    for forged in (None, "", "x", changed, cookie + "x"):
        assert not door.signed_in(forged)
        assert status_of(door.check_write, forged) == 401


def test_a_restart_signs_nobody_out_and_another_password_everyone(store):
    cookie = Access(section(), store).sign_in("a", "correct horse")
    assert Access(section(), store).signed_in(cookie)
    assert not Access(section(password="another horse"), store).signed_in(cookie)
    assert not Access(section(password=""), store).signed_in(cookie)


def test_a_sign_in_lasts_as_long_as_configured(store, monkeypatch):
    door = Access(section(session_hours=0.5), store)
    cookie = door.sign_in("a", "correct horse")
    assert door.lasts_s == 1800
    import itsdangerous.timed

    now = itsdangerous.timed.time.time()
    monkeypatch.setattr(itsdangerous.timed.time, "time", lambda: now + 1799)
    assert door.signed_in(cookie)
    monkeypatch.setattr(itsdangerous.timed.time, "time", lambda: now + 1802)
    assert not door.signed_in(cookie)


def test_without_a_password_nobody_can_sign_in(store):
    door = Access(section(password=""), store)
    assert not door.has_password
    assert status_of(door.sign_in, "a", "") == 403
    assert status_of(door.check_write, None) == 403
    door.check_read(None)


def test_reading_is_free_unless_it_is_configured_otherwise(store):
    Access(section(), store).check_read(None)
    door = Access(section(read_requires_password=True), store)
    assert status_of(door.check_read, None) == 401
    door.check_read(door.sign_in("a", "correct horse"))


def test_a_scraper_reads_with_its_token_alone(store):
    door = Access(section(read_requires_password=True, metrics_token="a scraper's"), store)
    door.check_scrape(None, "Bearer a scraper's")
    door.check_scrape(None, "bearer  a scraper's ")
    door.check_scrape(door.sign_in("a", "correct horse"), "")
    for wrong in ("", "Bearer ", "Bearer correct horse", "Basic a scraper's", "a scraper's", "Bearer \ud83d"):
        assert status_of(door.check_scrape, None, wrong) == 401
    without = Access(section(read_requires_password=True), store)
    assert status_of(without.check_scrape, None, "Bearer ") == 401
    Access(section(metrics_token="a scraper's"), store).check_scrape(None, "")


def test_who_guesses_waits_and_nobody_else(store):
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(access.TRIES):
        attempts.check("1.1.1.1")
        attempts.failed("1.1.1.1")
    with pytest.raises(RequestError, match="try again in") as caught:
        attempts.check("1.1.1.1")
    assert caught.value.status == 429 and 1 <= caught.value.retry_after_s <= access.TRY_S + 1
    attempts.check("2.2.2.2")
    now[0] += access.TRY_S + 1
    attempts.check("1.1.1.1")
    attempts.failed("1.1.1.1")
    assert status_of(attempts.check, "1.1.1.1") == 429


def test_addresses_that_guessed_are_not_remembered_without_bound(monkeypatch):
    monkeypatch.setattr(access, "MAX_ADDRESSES", 3)
    attempts = Attempts(lambda: 0.0)
    for number in range(10):
        attempts.failed(str(number))
    assert len(attempts._free_at) == 3


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, True),
        ({"x-hintloop-console": "1"}, False),
        ({"x-hintloop-console": "0"}, True),
        ({"x-hintloop-console": "1", "origin": "http://h:1", "host": "h:1"}, False),
        ({"x-hintloop-console": "1", "origin": "http://evil", "host": "h:1"}, True),
        ({"x-hintloop-console": "1", "origin": "null", "host": "h:1"}, True),
        ({"x-hintloop-console": "1", "origin": "http://[", "host": "h:1"}, True),
        ({"x-hintloop-console": "1", "sec-fetch-site": "cross-site"}, True),
        ({"x-hintloop-console": "1", "sec-fetch-site": "same-site"}, True),
        ({"x-hintloop-console": "1", "sec-fetch-site": "same-origin"}, False),
    ],
)
def test_requests_of_other_pages_are_refused(headers, refused):
    if refused:
        assert status_of(check_origin, headers) == 403
    else:
        check_origin(headers)


def test_a_proxy_that_changes_the_host_is_told_of():
    headers = {"x-hintloop-console": "1", "origin": "https://c.example", "host": "console:8080"}
    with pytest.raises(RequestError, match=r"'https://c\.example' is not 'console:8080'; a proxy .* has to pass"):
        check_origin(headers)


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("c.example", False),
        ("C.Example:8443", False),
        ("a.b.example:1", False),
        ("b.example", True),
        ("evil.example", True),
        ("evil.example:8080", True),
        ("127.0.0.1.evil.example", True),
        ("[", True),
        (":8080", True),
        ("", False),
        ("localhost:8080", False),
        ("console:8080", False),
        ("127.0.0.1:8080", False),
        ("10.1.2.3:8080", False),
        ("[::1]:8080", False),
    ],
)
def test_names_under_which_it_answers(host, refused):
    names = section(allowed_hosts=["c.example", "*.b.example"]).allowed_hosts
    if refused:
        assert status_of(check_host, host, names) == 400
        assert status_of(check_host, host, section().allowed_hosts) == 400
    else:
        check_host(host, names)
    check_host(host, ["*"])


@pytest.mark.parametrize(
    "name", ["https://c.example", "c.example:8443", "c.example/console", "", "c.*", "*c.example", "a b"]
)
def test_what_is_no_name_of_a_host_is_refused_with_the_fix(name):
    with pytest.raises(ConfigError, match=r"console\.allowed_hosts.*(leave out|write console\.example\.com)") as caught:
        load_config(flags={"console.allowed_hosts": json.dumps([name])}, environ={})
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["PASSWORD", "METRICS_TOKEN"])
def test_a_short_password_is_refused_and_not_shown(name):
    with pytest.raises(ConfigError, match="has 4 characters") as caught:
        load_config(environ={f"HINTLOOP_CONSOLE__{name}": "zyxw"})
    assert "zyxw" not in str(caught.value)
