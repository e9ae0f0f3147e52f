"""What every section of the configuration is built from: its base class, number types, address checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
#: What every random generator takes, with room for what is added to it.
Seed = Annotated[int, Field(ge=0, lt=2**31)]
#: Ten years; Redis takes no expiry that is much longer.
MAX_SECONDS = 315_360_000
KeptSeconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]


class Section(BaseModel):
    """Base of every section: unknown keys and infinite numbers are refused, attributes' docstrings document them."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes true for 1; whoever wrote true where a number is meant did not mean 1."""
        given = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) for item in given):
            taken = set(_plain_types(cls.model_fields[str(info.field_name)].annotation))
            if taken & {int, float} and bool not in taken:
                raise ValueError("true and false are no numbers; write a number")
        return value


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Types that stand in an annotation, however deep."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        if not isinstance(part, bool | int | float):
            yield from _plain_types(part)


def http_address(value: str) -> str:
    """Check an ``http(s)://host[:port][/path]`` address and strip its trailing slash."""
    parts = urlsplit(value)
    # Addresses stand in logs and error messages; a key among them would, too.
    if "@" in parts.netloc:
        raise ValueError(
            "an address holds no user or password; leave out what stands before @, and give a key as an API key"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not an http(s) address; write it as http://host:port")
    if parts.query or parts.fragment:
        raise ValueError(f"{value!r} has a query or fragment, which paths cannot be added to; leave out ? and #")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"the port of {value!r} is none of 1 to 65535")
    return value.rstrip("/")
