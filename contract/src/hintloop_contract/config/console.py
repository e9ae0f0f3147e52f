"""Section `[console]`: the web page, and the history of turns that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from hintloop_contract.config.section import Positive, PositiveFloat, Section


class ConsoleSection(Section):
    """The console, and what services note for it. Nothing of the signal depends on either."""

    host: str = "127.0.0.1"
    """Listening address. On any other than this machine's own, set a `password` and put TLS in front."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Listening port; 0 takes a free one. `hintloop up` and the demo take a free one when it is taken."""
    password: SecretStr = SecretStr("")
    """Signs people in to write (rollback, resume, run doctor); empty: the console only shows."""
    read_requires_password: bool = False
    """Show turns, hints and figures to people who are signed in alone."""
    metrics_token: SecretStr = SecretStr("")
    """With `read_requires_password`: lets Prometheus read `/metrics` (`authorization.credentials`). Empty: without a
    sign-in nobody reads it then."""
    session_hours: Annotated[float, Field(gt=0, le=8760)] = 12.0
    """How long a sign-in lasts."""
    history: bool = True
    """Services note finished hops in the stream `history`, for people to look at; false: nothing is noted."""
    history_max_entries: Positive = 50_000
    """Most entries in that stream; the oldest go. A turn has four or five."""
    history_max_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 128
    """Most megabytes (10^6 bytes) of their payloads in Redis; the oldest go."""
    database: Path = Path(".hintloop/console.sqlite3")
    """Where the console keeps the turns that it has read."""
    keep_turns: Positive = 20_000
    """Most turns kept there; the oldest go, with all that belongs to them."""
    keep_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 4096
    """Most megabytes (10^6 bytes) of their contents kept there."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Names under which browsers reach the console (`console.example.com`, `*.example.com`; `*`: any). Others are
    refused, for another site's page could read here under its own; addresses and names without a dot are not."""
    doctor_command: list[str] = Field(default_factory=lambda: ["hintloop", "doctor", "--json"])
    """What `Run doctor` starts; the configuration's files follow as arguments. Empty: it cannot be run from here."""
    doctor_timeout_s: PositiveFloat = 300.0
    """Longest run of it."""

    @field_validator("password", "metrics_token")
    @classmethod
    def _no_guess(cls, value: SecretStr) -> SecretStr:
        length = len(value.get_secret_value())
        if 0 < length < 8:
            raise ValueError(f"it has {length} characters, which can be guessed; use 8 or more, or none")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _names_alone(cls, value: list[str]) -> list[str]:
        for name in value:
            plain = name.removeprefix("*.") if name != "*" else ""
            if "*" in plain or not name:
                raise ValueError(f"{name!r} is no name; write console.example.com, or *.example.com for all below it")
            if "/" in name or name.count(":") == 1 or name.split() != [name]:
                raise ValueError(f"{name!r} is more than a name; leave out scheme, port and path")
        return value
