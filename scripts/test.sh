#!/usr/bin/env bash
# Runs the tests that a marker expression chooses: the unit tests beside the others, which wait for engines most of the
# time. Usage: scripts/test.sh MARKERS [ARGUMENT...]   With arguments one pytest runs, as they say.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs.sh
source scripts/jobs.sh

markers="$1"
shift
pytest=(.venv/bin/python -m pytest -m "$markers")
if (($#)); then
  exec "${pytest[@]}" "$@"
fi

log="$(mktemp)"
trap 'stop_jobs; rm -f "$log"' EXIT
start_job "unit tests" bash -c 'log="$1"; shift; exec "$@" >"$log" 2>&1' bash "$log" "${pytest[@]}" tests/unit
code=0 unit_code=0
"${pytest[@]}" --ignore=tests/unit || code=$?
wait "${job_pids[0]}" || unit_code=$?
job_pids=()
cat "$log"
echo "${0##*/}: unit tests ended with $unit_code, the others (above them) with $code"
exit $((code ? code : unit_code))
