#!/usr/bin/env bash
# Installs SGLang for CPU into an environment of its own and prints that environment's path as the last line.
# Idempotent; two runs at once do not collide.  Progress goes to stderr.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=../venv.sh
source "$here/../venv.sh"

add_stand_ins() {
    local venv="$1" site_packages="$2"
    cp -r "$here/sgl_kernel" "$site_packages/"
    "$venv/bin/python" "$here/declare_vision_operators.py" "$site_packages/torchvision/__init__.py"
    # Imports that fail here would otherwise fail minutes later, in a server's log.  They also leave bytecode.
    SGLANG_USE_CPU_ENGINE=1 "$venv/bin/python" -W ignore -c '
import sglang.launch_server
import sglang.srt.entrypoints.http_server
import sglang.srt.managers.scheduler
import sglang.srt.models.llama
'
}

ensure_engine_venv sglang "$here" add_stand_ins
