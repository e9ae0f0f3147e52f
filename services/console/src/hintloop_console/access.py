"""Who may write: one password, a signed cookie, and what keeps other pages from using it. Knows no route.

A browser sends the cookie to this site's own pages alone (``SameSite=Strict``). Writing also needs a header that no
form can send and, where the browser says where a request comes from, this very site.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from hintloop_contract.config.console import ConsoleSection
from itsdangerous import BadSignature, URLSafeTimedSerializer

from hintloop_console.errors import RequestError
from hintloop_console.store import Store

COOKIE = "hintloop_console"
#: What pages of this console send with everything that changes something.
HEADER = "x-hintloop-console"
#: Wrong passwords from one address before it has to wait, and how long for each.
TRIES, TRY_S = 5, 12.0
MAX_ADDRESSES = 10_000
_SALT = "hintloop-console"


class Attempts:
    """Slows down who guesses: ``TRIES`` at once, then one each ``TRY_S`` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Count by ``clock``, in seconds."""
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str) -> None:
        """Let ``address`` try.

        Raises:
            RequestError: it has to wait.
        """
        wait_s = self._free_at.get(address, 0.0) - self._clock() - (TRIES - 1) * TRY_S
        if wait_s > 0:
            seconds = int(wait_s) + 1
            raise RequestError(429, f"too many wrong passwords; try again in {seconds} s", retry_after_s=seconds)

    def failed(self, address: str) -> None:
        """A password of ``address`` was wrong."""
        now = self._clock()
        self._free_at[address] = max(self._free_at.pop(address, 0.0), now) + TRY_S
        if len(self._free_at) > MAX_ADDRESSES:
            self._free_at.popitem(last=False)


class Access:
    """Signs people in and tells them again by their cookie."""

    def __init__(self, section: ConsoleSection, store: Store) -> None:
        """Sign with a key that the store keeps, so that a restart signs nobody out, and another password everyone."""
        self._password = section.password.get_secret_value()
        self.lasts_s = int(section.session_hours * 3600)
        self.reading_is_free = not (section.read_requires_password and self._password)
        self.attempts = Attempts()
        self._metrics_token = section.metrics_token.get_secret_value()
        key = store.remembered("signing_key")
        if key is None:
            key = secrets.token_hex(32)
            store.remember("signing_key", key)
        secret = hmac.new(bytes.fromhex(key), self._password.encode(), hashlib.sha256).hexdigest()
        self._serializer = URLSafeTimedSerializer(secret, salt=_SALT, signer_kwargs={"digest_method": hashlib.sha256})

    @property
    def has_password(self) -> bool:
        """Whether anyone can sign in."""
        return bool(self._password)

    def sign_in(self, address: str, password: str) -> str:
        """The cookie's value for who knows the password.

        Raises:
            RequestError: it is wrong, tried too often, or there is none.
        """
        if not self._password:
            raise RequestError(403, "nobody can sign in: set console.password (HINTLOOP_CONSOLE__PASSWORD)")
        self.attempts.check(address)
        given, known = (
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (password, self._password)
        )
        if not hmac.compare_digest(given, known):
            self.attempts.failed(address)
            raise RequestError(401, "the password is wrong")
        return str(self._serializer.dumps({"signed_in": secrets.token_hex(8)}))

    def signed_in(self, cookie: str | None) -> bool:
        """Whether the cookie is one of ours, and recent."""
        if not cookie or not self._password:
            return False
        try:
            self._serializer.loads(cookie, max_age=self.lasts_s)
        except BadSignature:
            return False
        return True

    def may_read(self, cookie: str | None) -> bool:
        """Whether who sends the cookie is shown anything."""
        return self.reading_is_free or self.signed_in(cookie)

    def check_read(self, cookie: str | None) -> None:
        """Raises:
        RequestError: reading needs a sign-in.
        """
        if not self.may_read(cookie):
            raise RequestError(401, "sign in first: console.read_requires_password is on")

    def check_scrape(self, cookie: str | None, authorization: str) -> None:
        """Raises:
        RequestError: metrics are figures, which reading asks for; a scraper sends its token instead.
        """
        scheme, _, token = authorization.partition(" ")
        given, known = (
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            for text in (token.strip(), self._metrics_token)
        )
        bears = bool(self._metrics_token) and scheme.lower() == "bearer" and hmac.compare_digest(given, known)
        if not bears and not self.may_read(cookie):
            raise RequestError(
                401,
                "console.read_requires_password is on: scrape with 'Authorization: Bearer TOKEN', TOKEN being "
                "console.metrics_token",
            )

    def check_write(self, cookie: str | None) -> None:
        """Raises:
        RequestError: writing needs a sign-in.
        """
        if not self._password:
            raise RequestError(403, "the console only shows; to write from here set console.password and sign in")
        if not self.signed_in(cookie):
            raise RequestError(401, "sign in first")


def check_origin(headers: dict[str, str]) -> None:
    """Refuse what another site's page may have made a browser send.

    Raises:
        RequestError: the header is missing, or the request comes from elsewhere.
    """
    if headers.get(HEADER) != "1":
        raise RequestError(403, f"send the header '{HEADER}: 1' with what changes something")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise RequestError(403, "the request comes from another site")
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and origin.partition("://")[2] != host:
        raise RequestError(
            403,
            f"the request comes from another site: {origin[:100]!r} is not {host[:100]!r}; a proxy in front of the "
            "console has to pass the header Host on as it is",
        )


def check_host(host: str, names: Sequence[str]) -> None:
    """Refuse a name that may be another site's, led here by its DNS: its page would read what it likes.

    Nobody's DNS leads an address or a name without a dot to elsewhere, and every browser names a host: probes and
    scrapers need not be known. ``names`` are `console.allowed_hosts`; ``*``: any, ``*.example.com``: any below it.

    Raises:
        RequestError: ``host``, as the request gives it, is none of these.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    harmless = not host or (name and "." not in name) or _is_address(name)
    if not harmless and not any(_covers(known, name) for known in names):
        raise RequestError(
            400, f"this console is not known as {name[:100]!r}; if that is its name, add it to console.allowed_hosts"
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _covers(known: str, name: str) -> bool:
    known = known.lower()
    return known in ("*", name) or (known.startswith("*.") and name.endswith(known[1:]))
