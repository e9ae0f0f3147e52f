"""Finds secrets and personal data in text, and masks them. Owns what counts as such; knows no captures.

Patterns of well-known secrets are detect-secrets', phone numbers are read by phonenumbers, numbers with check digits
are checked by python-stdnum. Nothing is looked up anywhere: all of it works on the text alone. Names of people and
postal addresses are not found.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from hintloop_contract.errors import ConfigError

Span = tuple[int, int, str]
"""``[start, end)`` in the text, and the word that stands in its place."""
Finder = Callable[[str], Iterator[Span]]

#: Longest piece handed to the patterns at once, characters: what one of them costs stays in the milliseconds.
PIECE_LENGTH = 8192
#: Characters on either side of what may be a phone number.
PHONE_CONTEXT = 8
#: detect-secrets' detectors whose pattern is the secret's own shape. The others guess by entropy, or by words that
#: ordinary code holds too.
DETECTORS = (
    "artifactory.ArtifactoryDetector",
    "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector",
    "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector",
    "jwt.JwtTokenDetector",
    "mailchimp.MailchimpDetector",
    "npm.NpmDetector",
    "openai.OpenAIDetector",
    "pypi_token.PypiTokenDetector",
    "sendgrid.SendGridDetector",
    "slack.SlackDetector",
    "square_oauth.SquareOAuthDetector",
    "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)
#: Keys that the library does not know: ours, and newer forms of model providers.
_MORE_SECRETS = (
    r"\bhl-[A-Za-z0-9_-]{43}\b",
    r"\bsk-(?:ant-|proj-|svcacct-|or-)?[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{30,}",
    r"\bAIza[A-Za-z0-9_-]{35}",
    r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    r"\b(?:gsk|xai|pplx|r8)[_-][A-Za-z0-9]{30,}",
)
_BEARER = re.compile(r"(?i)\bbearer[ \t]+([A-Za-z0-9._~+/=-]{16,})")
#: `DB_PASSWORD=…`, as in environment files and shells; a reference such as `$OTHER` or `<your key>` is none.
_ASSIGNED = re.compile(
    r"\b[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY)[A-Z0-9_]*[ \t]*=[ \t]*"
    r"[\"']?([^\s\"'$<{(\[][^\s\"']{5,})"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_KEYWORD_LINE = re.compile(r"(?i)pass|pwd|secret|token|key|cred")
_TOKEN_END = re.compile(r"[A-Za-z0-9_+/=.-]*")
#: Names of JSON members whose text is a secret, whatever it looks like.
SECRET_MEMBER = re.compile(
    r"(?i)(?:^|[_-])(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|authorization)$"
)

_EMAIL = re.compile(r"\b[\w.+%-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}\b")
_PHONE_LIKE = re.compile(r"(?<![\w.])\+?\(?\d[\d\s().\-/]{5,24}\d(?![\w])")
_CARD_LIKE = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){14,15}(?![\w-])")
_IBAN_LIKE = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}(?!\w)")
_SSN_LIKE = re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])")
_IPV4_LIKE = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)")
_CARD_PREFIX = re.compile(r"^(?:4|5[1-5]|2[2-7]|3[47]|6(?:011|5))")


def secret_finders() -> list[Finder]:
    """What finds secrets. Imports detect-secrets, which takes a moment."""
    patterns = [re.compile(pattern) for pattern in _MORE_SECRETS]
    for name in DETECTORS:
        module, _, plugin = name.partition(".")
        patterns += getattr(import_module(f"detect_secrets.plugins.{module}"), plugin)().denylist
    keywords = import_module("detect_secrets.plugins.keyword").KeywordDetector()
    return [partial(_shaped, patterns), _assigned, partial(_named, keywords.analyze_string)]


def _shaped(patterns: Sequence[re.Pattern[str]], text: str) -> Iterator[Span]:
    for pattern in patterns:
        for match in pattern.finditer(text):
            # Some of the library's patterns end before the secret does: they were made to find, not to mask.
            end = _TOKEN_END.match(text, match.end())
            yield match.start(), match.end() if end is None else end.end(), "secret"


def _assigned(text: str) -> Iterator[Span]:
    for pattern in (_BEARER, _ASSIGNED):
        for match in pattern.finditer(text):
            yield match.start(1), match.end(1), "secret"


def _named(analyze: Callable[[str], Iterable[str]], text: str) -> Iterator[Span]:
    """What the library finds by words such as ``password = "…"``, a line at a time."""
    start = 0
    for line in text.splitlines(keepends=True):
        if _KEYWORD_LINE.search(line):
            for secret in set(analyze(line)):
                for match in re.finditer(re.escape(secret), line) if secret else ():
                    yield start + match.start(), start + match.end(), "secret"
        start += len(line)


def personal_finders(phone_regions: Sequence[str]) -> list[Finder]:
    """What finds personal data. Imports phonenumbers and python-stdnum, which takes a moment.

    Args:
        phone_regions: countries (``US``) whose numbers are found in national form; ``+…`` is found anyway.

    Raises:
        ConfigError: one of them is no country that the library knows; it would find nothing, and say nothing.
    """
    phonenumbers = import_module("phonenumbers")
    if unknown := [region for region in phone_regions if region not in phonenumbers.SUPPORTED_REGIONS]:
        raise ConfigError(
            f"proxy.scrub_phone_regions: {unknown[0]!r} is no country's ISO 3166 code, such as 'US' or, for the United "
            "Kingdom, 'GB'"
        )
    matcher = phonenumbers.PhoneNumberMatcher
    checks = (
        (_CARD_LIKE, "card", partial(_is_card, import_module("stdnum.luhn").is_valid)),
        (_IBAN_LIKE, "iban", import_module("stdnum.iban").is_valid),
        (_SSN_LIKE, "ssn", import_module("stdnum.us.ssn").is_valid),
        (_IPV4_LIKE, "ip", _is_public),
    )
    return [_emails, partial(_checked, checks), partial(_phones, matcher, [*phone_regions] or [None])]


def _emails(text: str) -> Iterator[Span]:
    if "@" in text:
        yield from ((*match.span(), "email") for match in _EMAIL.finditer(text))


def _checked(checks: Sequence[tuple[re.Pattern[str], str, Callable[[str], bool]]], text: str) -> Iterator[Span]:
    for pattern, word, holds in checks:
        for match in pattern.finditer(text):
            if holds(match.group()):
                yield *match.span(), word


def _is_card(luhn: Callable[[str], bool], text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    return bool(_CARD_PREFIX.match(digits)) and luhn(digits)


def _is_public(text: str) -> bool:
    try:
        return ipaddress.IPv4Address(text).is_global
    except ValueError:
        return False


def _phones(matcher: Callable[..., Iterable[Any]], regions: Sequence[str | None], text: str) -> Iterator[Span]:
    for candidate in _PHONE_LIKE.finditer(text):
        # The library tells a time from a number by what stands around it.
        start = max(0, candidate.start() - PHONE_CONTEXT)
        around = text[start : candidate.end() + PHONE_CONTEXT]
        for region in regions:
            for match in matcher(around, region):
                yield start + match.start, start + match.end, "phone"


def mask(text: str, finders: Sequence[Finder], *, private_keys: bool = True) -> str:
    """``text`` with ``[secret]``, ``[email]``, … in place of what ``finders`` find; the same text when nothing is."""
    if private_keys and "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub("[secret]", text)
    return "".join(_masked(piece, finders) for piece in _pieces(text))


def _masked(piece: str, finders: Sequence[Finder]) -> str:
    spans = sorted(span for finder in finders for span in finder(piece))
    if not spans:
        return piece
    out, done = [], 0
    for start, end, word in spans:
        if start >= done:
            out += [piece[done:start], f"[{word}]"]
        done = max(done, end)
    return "".join([*out, piece[done:]])


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces that end with a line, or at least with a word."""
    start = 0
    while len(text) - start > PIECE_LENGTH:
        end = text.rfind("\n", start, start + PIECE_LENGTH)
        if end < start:
            end = text.rfind(" ", start, start + PIECE_LENGTH)
        if end < start:
            space = re.compile(r"\s").search(text, start + PIECE_LENGTH)
            end = len(text) - 1 if space is None else space.start()
        yield text[start : end + 1]
        start = end + 1
    yield text[start:]
