#!/usr/bin/env bash
# Builds every image of the shipped compose file that this machine can, and the stand-ins for the others.
# Usage: build.sh LOGS, with the Docker engine of scripts/test-compose.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=../../scripts/jobs.sh
source scripts/jobs.sh
trap stop_jobs EXIT
logs="$1"

# build NAME TAG ARGUMENT...: one image, its output in a file
build() {
  local name="$1" tag="$2" started=$SECONDS
  shift 2
  docker build -q --network host -t "$tag" "$@" . >"$logs/build-$name.log" 2>&1 || {
    echo "build.sh: $name failed: $(tail -5 "$logs/build-$name.log")" >&2
    return 1
  }
  printf '%s\t%d\n' "$name" $((SECONDS - started)) >>"$logs/build-seconds.tsv"
}
export -f build
export logs
: >"$logs/build-seconds.tsv"

shipped() { echo "build $1 hintloop/$1:0.1.0 -f deploy/images/${2:-$1/Dockerfile}"; }
stand_in() { echo "build $(basename "${1%%:*}") $1 -f tests/compose/standin/$2"; }
tag_of() { sed -n "s/.*{$1:-\(.*\)}/\1/p" deploy/docker-compose.yml; }

# Two at a time: one half is pip, the other is Docker's copying.
start_job "trainer's image" bash -ec "$(shipped trainer-cpu trainer/cpu.Dockerfile)
  build trainer hintloop/trainer:0.1.0 -f tests/compose/standin/trainer.Dockerfile
  $(shipped redis)"
start_job "services' images" bash -ec "$(shipped teacher)
  $(stand_in "$(tag_of SGLANG_IMAGE)" Dockerfile)
  $(stand_in "$(tag_of PROMETHEUS_IMAGE)" web.Dockerfile)
  docker tag '$(tag_of PROMETHEUS_IMAGE)' '$(tag_of GRAFANA_IMAGE)'
  docker tag '$(tag_of PROMETHEUS_IMAGE)' '$(tag_of ALERTMANAGER_IMAGE)'
  docker tag hintloop-test/debian '$(tag_of HAPROXY_IMAGE)'
  $(shipped judge); $(shipped rollout-proxy); $(shipped console)"
wait_jobs
# What the build stages left is memory.
docker image prune -f >/dev/null
