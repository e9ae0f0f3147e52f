#!/usr/bin/env bash
# Tests the shipped compose file (tests/compose) in a Docker engine of its own, which is started here and ended again.
# Needs root on Debian 12, and installs what is missing. Arguments go to pytest. HINTLOOP_SKIP_COMPOSE=1 leaves it out.
# Nothing is pulled: images are built here by the shipped Dockerfiles, on a base made from Debian's packages, with the
# wheels of this machine's pip; engines and observability are stand-ins under the vendors' names.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs.sh
source scripts/jobs.sh

say() { printf 'test-compose.sh: %4d s: %s\n' "$SECONDS" "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

if [[ "${HINTLOOP_SKIP_COMPOSE:-}" = 1 ]]; then
  say "left out: HINTLOOP_SKIP_COMPOSE=1"
  exit 0
fi

cache="${XDG_CACHE_HOME:-$HOME/.cache}/hintloop/compose"
mkdir -p "$cache"
# Two at once would remove one another's wheels.
exec 9>"$cache/lock"
if ! flock -n 9; then
  say "another one runs on this machine; waiting for it"
  until flock -w 2 9; do :; done
fi
# Deleting a data root on a disk takes minutes; in memory it needs room for all images.
needed_kb=$((8 * 1024 * 1024))
free_kb() { df --output=avail "$1" 2>/dev/null | tail -1; }
if [[ -d /dev/shm && "$(free_kb /dev/shm)" -gt $needed_kb ]]; then place=/dev/shm; else place="$cache"; fi
root="$(mktemp -d "$place/hintloop-compose.XXXXXX")"
logs=.hintloop/test-compose
mkdir -p "$logs"

daemon_pid() { cat "$root/docker.pid" 2>/dev/null || true; }

clean_up() {
  local pid mount
  trap '' INT TERM HUP
  stop_jobs
  pid="$(daemon_pid)"
  if [[ -n "$pid" ]]; then
    timeout 60 docker ps -aq 2>/dev/null | xargs -r timeout 60 docker rm -f >/dev/null 2>&1 || true
    timeout 20 docker network prune -f >/dev/null 2>&1 || true
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 300); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
  fi
  # Deepest first.
  awk -v root="$root/" 'index($2, root) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do
    umount -l "$mount" 2>/dev/null || true
  done
  rm -rf "$root"
}
trap clean_up EXIT

require_programs() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v iptables >/dev/null || missing+=(iptables)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  command -v ip >/dev/null || missing+=(iproute2)
  ((${#missing[@]})) || return 0
  [[ "$(id -u)" = 0 ]] && command -v apt-get >/dev/null ||
    fail "${missing[*]} missing, and not root on Debian; install them, or set HINTLOOP_SKIP_COMPOSE=1"
  say "installing ${missing[*]}"
  apt-get update -qq
  # No service is started by the installation: the engine runs here, by hand.
  printf '#!/bin/sh\nexit 101\n' >"$root/policy-rc.d"
  chmod +x "$root/policy-rc.d"
  POLICYRCD="$root/policy-rc.d" DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$logs/apt.log" 2>&1 ||
    fail "apt-get failed: $(tail -3 "$logs/apt.log")"
}

start_engine() {
  local hook="$root/bin/nvidia-container-runtime-hook"
  mkdir -p "$root/bin"
  # With it Docker takes reservations of GPUs; what they are is seen in the container's environment.
  printf '#!/bin/sh\ncat >/dev/null\n' >"$hook"
  chmod +x "$hook"
  export DOCKER_HOST="unix://$root/docker.sock" DOCKER_CONFIG="$root/client" DOCKER_BUILDKIT=0
  mkdir -p "$DOCKER_CONFIG/cli-plugins"
  ln -s "$tools/bin/docker-compose" "$DOCKER_CONFIG/cli-plugins/docker-compose"
  PATH="$root/bin:$PATH" setsid dockerd -H "$DOCKER_HOST" --data-root "$root/data" --exec-root "$root/exec" \
    --pidfile "$root/docker.pid" --iptables=false --ip6tables=false --bridge=none >"$logs/dockerd.log" 2>&1 9>&- &
  local started=$!
  for _ in $(seq 300); do
    docker version >/dev/null 2>&1 && return 0
    kill -0 "$started" 2>/dev/null || break
    sleep 0.1
  done
  tail -5 "$logs/dockerd.log" >&2
  fail "Docker cannot start on this machine (above; all of it in $logs/dockerd.log). To leave this check out, set" \
    "HINTLOOP_SKIP_COMPOSE=1"
}

# What the images' packages require, in the versions that are installed here, as wheels. Pip has them in its cache.
# The images' base has Debian 12's Python.
fetch_wheels() {
  local list="$root/wheels.txt"
  .venv/bin/python scripts/image_wheels.py 3.11.2 >"$list"
  wheels="$cache/wheels-$(sha256sum <"$list" | cut -c1-12)"
  [[ -f "$wheels/.complete" ]] && return 0
  rm -rf "$cache"/wheels-*
  mkdir -p "$wheels"
  start_job "wheels" bash -c '"${@:2}" >"$1" 2>&1' bash "$logs/wheels.log" \
    .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps -d "$wheels" -r "$list"
}

make_debian() {
  local packages=ca-certificates,haproxy,netcat-openbsd,python3.11,python3-pip,redis-server
  debian="$cache/debian-$(echo "2 $packages" | sha256sum | cut -c1-12).tar"
  [[ -f "$debian" ]] && return 0
  rm -f "$cache"/debian-*.tar
  start_job "Debian's packages" bash -c 'TMPDIR="$1" mmdebstrap -q --variant=minbase --include="$2" \
    --dpkgopt="path-exclude=/usr/share/doc/*" --dpkgopt="path-exclude=/usr/share/man/*" \
    --dpkgopt="path-exclude=/usr/share/locale/*" bookworm "$3.tar" 2>"$4" && mv "$3.tar" "$3"' \
    mmdebstrap "$root" "$packages" "$debian" "$logs/mmdebstrap.log"
}

serve_wheels() {
  local port
  port="$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  (cd "$wheels" && exec setsid "$OLDPWD/.venv/bin/python" -m http.server "$port" --bind 127.0.0.1) >/dev/null 2>&1 9>&- &
  job_pids+=("$!") job_names+=("wheels for images")
  pip_source="http://127.0.0.1:$port/"
}

# The base images that the Dockerfiles name, made here.
make_bases() {
  docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' "$debian" \
    hintloop-test/debian >/dev/null
  mkdir -p "$root/base"
  printf '[global]\nno-index = true\nfind-links = %s\ntrusted-host = 127.0.0.1\n' "$pip_source" >"$root/base/pip.conf"
  cp tests/compose/base.Dockerfile "$root/base/Dockerfile"
  docker build -q --network host -t "$(image_in judge PYTHON_IMAGE)" "$root/base" >"$logs/build-base.log" 2>&1 ||
    fail "the base image was not built: $(tail -3 "$logs/build-base.log")"
  docker tag hintloop-test/debian "$(image_in redis REDIS_IMAGE)"
}

# image_in NAME ARGUMENT -> the default of a Dockerfile's argument
image_in() { sed -n "s/^ARG $2=//p" "deploy/images/$1/Dockerfile"; }

require_programs
tools="$(scripts/deploy-tools.sh | tail -1)"
fetch_wheels
make_debian
start_engine
say "the engine runs in $root; fetching what images are made of"
wait_jobs || fail "see $logs"
touch "$wheels/.complete"
serve_wheels
make_bases
say "building images"
tests/compose/build.sh "$logs"
say "images are built; the stack"
export HINTLOOP_COMPOSE_LOGS="$PWD/$logs" HINTLOOP_DOCKER_DATA="$root/data"
code=0
.venv/bin/python -m pytest tests/compose -p no:cacheprovider "$@" || code=$?
say "ended with $code"
exit "$code"
