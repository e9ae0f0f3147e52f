#!/usr/bin/env bash
# Makes .venv/, the named engines' environments, and the demo's model; what exists is left alone.
# Usage: scripts/prepare.sh ENGINE...
set -euo pipefail
cd "$(dirname "$0")/.."

pids=()
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done' INT TERM
# The base interpreter is a step of scripts/setup.sh, so engines wait for it only where it is missing.
command -v python3.11 >/dev/null || scripts/setup.sh
scripts/setup.sh &
pids+=($!)
for engine in "$@"; do
  if [ ! -f "engines/$engine/install.sh" ]; then
    echo "prepare: there is no engine '$engine'; known are vllm and sglang" >&2
    exit 2
  fi
  "engines/$engine/install.sh" >/dev/null &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
PYTHON=.venv/bin/python engines/models/prepare.sh >/dev/null
