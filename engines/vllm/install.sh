#!/usr/bin/env bash
# Installs vLLM for CPU into an environment of its own and prints that environment's path as the last line.
# Idempotent; two runs at once do not collide.  Progress goes to stderr.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=../venv.sh
source "$here/../venv.sh"

check_imports() {
    # Imports that fail here would otherwise fail minutes later, in a server's log.  They also leave bytecode.
    VLLM_NO_USAGE_STATS=1 PYTHONPATH="$here" "$1/bin/python" -c '
import hintloop_vllm.reload
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.llama
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker
'
}

ensure_engine_venv vllm "$here" check_imports
