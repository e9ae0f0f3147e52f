"""`hintloop keys new`."""

from __future__ import annotations

import json

import typer
from hintloop_contract.api_keys import new_key
from hintloop_contract.config.access import ApiKeyEntry, key_hash
from pydantic import ValidationError

from hintloop.errors import CommandError


def run_keys_new(section: str, *, tenant: str, name: str, train: bool) -> None:
    """Print a fresh key (its only appearance), then the TOML entry of ``section`` that lets it in.

    Raises:
        CommandError: ``tenant`` cannot be a tenant's name, ``name`` cannot stand in a TOML file, or the section's
            callers have neither tenant nor training.
    """
    if section == "prm" and (tenant != "default" or not train):
        raise CommandError(
            "--tenant and --no-train have no effect with --for prm, whose routes train nothing; leave both"
        )
    if not name.isprintable():
        raise CommandError(f"--name {name!r} holds a line break or another character that is not shown; leave it out")
    key = new_key()
    whose = {"tenant": tenant, "train": train} if section == "proxy" else {}
    entry = {"hash": key_hash(key), **whose, **({"name": name} if name else {})}
    try:
        ApiKeyEntry.model_validate(entry)
    except ValidationError:
        raise CommandError(
            f"--tenant {tenant!r} is no tenant's name; use letters, digits, '.', '_' and '-', 64 at most"
        ) from None
    typer.echo("The key is not kept anywhere; hand it on now, and put the entry below it into config.toml.", err=True)
    typer.echo(f"{key}\n\n[[{section}.api_keys]]")
    for field, value in entry.items():
        # JSON text and booleans are TOML's, too.
        typer.echo(f"{field} = {json.dumps(value, ensure_ascii=False)}")
