# Sourced: runs jobs side by side, each in a session of its own, so that all of a job can be ended and not its first
# process alone. Whoever sources it sets `trap stop_jobs EXIT`; INT, TERM and HUP end the script here.

job_pids=()
job_names=()
# Seconds between two lines that say what is still awaited.
jobs_report_s=30
jobs_grace_s=10

trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# start_job NAME COMMAND...: in the background. A lock that the caller holds on descriptor 9 is not passed on.
start_job() {
  local name="$1"
  shift
  setsid "$@" </dev/null 9>&- &
  job_pids+=("$!")
  job_names+=("$name")
}

# The pid is a session's leader as soon as setsid has run; before that, there is only the process itself.
signal_job() {
  kill "-$1" -- "-$2" 2>/dev/null || kill "-$1" "$2" 2>/dev/null || true
}

job_lives() { kill -0 -- "-$1" 2>/dev/null || kill -0 "$1" 2>/dev/null; }

# Ends every job with all that it started: SIGTERM, and SIGKILL to what is left after `jobs_grace_s`.
stop_jobs() {
  local pid tries alive
  trap '' INT TERM HUP
  for pid in ${job_pids[@]+"${job_pids[@]}"}; do signal_job TERM "$pid"; done
  for ((tries = 0; tries < 10 * jobs_grace_s; tries++)); do
    alive=0
    for pid in ${job_pids[@]+"${job_pids[@]}"}; do job_lives "$pid" && alive=1; done
    ((alive)) || return 0
    sleep 0.1
  done
  for pid in "${job_pids[@]}"; do signal_job KILL "$pid"; done
}

# Waits for all jobs. At the first one that fails: its name to stderr, and its exit code; the others still run then.
wait_jobs() {
  local started=$SECONDS said=$SECONDS index pid code
  while ((${#job_pids[@]})); do
    for index in "${!job_pids[@]}"; do
      pid="${job_pids[$index]}"
      kill -0 "$pid" 2>/dev/null && continue
      code=0
      wait "$pid" || code=$?
      if ((code)); then
        echo "${0##*/}: ${job_names[$index]} failed (exit code $code)" >&2
        return "$code"
      fi
      if ((SECONDS - started >= 2)); then
        echo "${0##*/}: ${job_names[$index]}: done after $((SECONDS - started)) s" >&2
      fi
      unset "job_pids[$index]" "job_names[$index]"
    done
    if ((${#job_pids[@]} && SECONDS - said >= jobs_report_s)); then
      said=$SECONDS
      printf '%s: after %d s still at:' "${0##*/}" $((SECONDS - started)) >&2
      printf ' %s;' "${job_names[@]}" >&2
      echo >&2
    fi
    ((${#job_pids[@]} == 0)) || sleep 0.1
  done
}
