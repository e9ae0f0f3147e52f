#!/usr/bin/env bash
# Makes .venv/, the named environments, and the demo's model; what exists is left alone.
# Usage: scripts/prepare.sh NAME...   (vllm, sglang: engines; clients: the agent libraries of the tests;
# deploy: what checks deploy/)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs.sh
source scripts/jobs.sh

installer() {
  case "$1" in
    clients) echo tests/clients/install.sh ;;
    deploy) echo scripts/deploy-tools.sh ;;
    *) echo "engines/$1/install.sh" ;;
  esac
}

for name in "$@"; do
  if [ ! -f "$(installer "$name")" ]; then
    echo "prepare.sh: there is no engine '$name'; ENGINE is vllm or sglang" >&2
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
for name in "$@"; do
  # The last line of their output, the environment's path, is for others; pip shows errors alone.
  PIP_QUIET=1 start_job "environment $name" bash -c '"$0" >/dev/null' "$(installer "$name")"
done
wait_jobs
PYTHON=.venv/bin/python start_job "the demo's model" bash -c '"$0" >/dev/null' engines/models/prepare.sh
wait_jobs
