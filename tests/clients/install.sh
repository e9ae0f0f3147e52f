#!/usr/bin/env bash
# Installs the stock agent libraries that the tests point at the proxy into an environment of their own (they pin
# other versions than the services) and prints its path as the last line. Idempotent; two runs at once do not collide.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

unset PYTHONDONTWRITEBYTECODE
# Raised when what is below installs something else from the same file.
recipe_revision=1
recipe="$({ echo "$recipe_revision"; cat constraints/clients.txt; } | sha256sum | cut -c1-12)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/hintloop/clients"
venv="$cache/clients-$recipe"

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [[ ! -f "$venv/.complete" ]]; then
    echo "tests/clients: installing into $venv" >&2
    rm -rf "$venv"
    "${HINTLOOP_PYTHON:-python3.11}" -m venv "$venv" >&2
    # The file lists everything, so nothing is left to resolve and nothing else can come in.
    "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-deps -r constraints/clients.txt >&2
    touch "$venv/.complete"
fi
exec 9>&-
echo "$venv"
