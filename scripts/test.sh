#!/usr/bin/env bash
# Runs the tests that a marker expression chooses, in three lanes side by side: those on real engines, which take
# longest, those with other processes, and the unit tests. Each waits more than it computes.
# Usage: scripts/test.sh MARKERS [ARGUMENT...]   With arguments one pytest runs, as they say.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=jobs.sh
source scripts/jobs.sh

markers="$1"
shift
pytest=(.venv/bin/python -m pytest --durations=15)
if (($#)); then
  exec "${pytest[@]}" -m "$markers" "$@"
fi

logs="$(mktemp -d)"
trap 'stop_jobs; rm -rf "$logs"' EXIT
started=$SECONDS

# start_lane NAME MARKERS PATH...: its output, exit code and seconds go to files, to be shown once it has ended.
start_lane() {
  local name="$1" chosen="$2"
  shift 2
  start_job "$name" bash -c '
    base="$1"; shift; begun=$SECONDS; code=0
    "$@" >"$base.log" 2>&1 || code=$?
    echo "$((SECONDS - begun))" >"$base.seconds"
    exit "$code"' bash "$logs/$name" "${pytest[@]}" -m "$chosen" "$@"
}

start_lane unit "$markers" tests/unit
start_lane processes "($markers) and not engine" --ignore=tests/unit
code=0
"${pytest[@]}" -m "($markers) and engine" --ignore=tests/unit || code=$?
# Where nothing is chosen for a lane, pytest ends with 5.
((code != 5)) || code=0
summary="engines ended with $code after $((SECONDS - started)) s"
for index in "${!job_pids[@]}"; do
  lane_code=0
  wait "${job_pids[$index]}" || lane_code=$?
  ((lane_code != 5)) || lane_code=0
  name="${job_names[$index]}"
  cat "$logs/$name.log"
  summary+=", $name with $lane_code after $(cat "$logs/$name.seconds") s"
  ((code)) || code=$lane_code
done
job_pids=()
echo "${0##*/}: $summary"
exit "$code"
