#!/usr/bin/env bash
# Makes .venv/, the named engines' environments, and the demo's model; what exists is left alone.
# Usage: scripts/prepare.sh ENGINE...   (vllm, sglang)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs.sh
source scripts/jobs.sh

for engine in "$@"; do
  if [ ! -f "engines/$engine/install.sh" ]; then
    echo "prepare.sh: there is no engine '$engine'; ENGINE is vllm or sglang" >&2
    exit 2
  fi
done

trap stop_jobs EXIT
# The base interpreter is a step of scripts/setup.sh, so engines wait for it only where it is missing.
if ! command -v python3.11 >/dev/null; then
  start_job "services' environment" scripts/setup.sh
  wait_jobs
fi
start_job "services' environment" scripts/setup.sh
for engine in "$@"; do
  # The last line of their output, the environment's path, is for others; pip shows errors alone.
  PIP_QUIET=1 start_job "engine $engine" bash -c '"$0" >/dev/null' "engines/$engine/install.sh"
done
wait_jobs
PYTHON=.venv/bin/python start_job "the demo's model" bash -c '"$0" >/dev/null' engines/models/prepare.sh
wait_jobs
