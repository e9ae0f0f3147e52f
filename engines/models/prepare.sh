#!/usr/bin/env bash
# Prepares the default model and prints its directory as the last line of stdout.
# usage: prepare.sh [PYTHON]   (or PYTHON in the environment; default: the clone's .venv)
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${1:-${PYTHON:-$here/../../.venv/bin/python}}"
if ! command -v "$python" >/dev/null 2>&1; then
    echo "prepare.sh: no Python at '$python'; give the services' interpreter as the first argument" >&2
    exit 2
fi
models="${XDG_CACHE_HOME:-$HOME/.cache}/hintloop/models"
mkdir -p "$models"
# One conversion at a time: a second caller waits and then finds the result.
exec 9>"$models/.prepare.lock"
flock 9
HF_HUB_OFFLINE=1 "$python" "$here/prepare_smollm2.py"
