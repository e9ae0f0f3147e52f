#!/usr/bin/env bash
# Starts SGLang's server on 127.0.0.1 in place of this process: the pid stays the server's.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=../venv.sh
source "$here/../venv.sh"
# shellcheck source=../arguments.sh
source "$here/../arguments.sh"
parse_engine_arguments sglang "$@"

# Policy and PRM start alike: log-probabilities of answers are after temperature, those of prompts at 1.
flags=(
    --model-path "$model" --served-model-name "$served_model_name"
    --host 127.0.0.1 --port "$port"
    --dtype "$dtype" --context-length "$max_model_len"
    --skip-server-warmup
    # Also a condition of exact capture: without a parser SGLang streams no log-probability for a token that
    # adds no text, the end-of-turn token among them.
    --tool-call-parser "${HINTLOOP_TOOL_CALL_PARSER:-hermes}"
    # Sampling defaults come from the request alone, never from the checkpoint's folder.
    --sampling-defaults openai
    # An idle scheduler would keep one core busy polling.
    --sleep-on-idle
    --log-level warning
)

if [[ -n "${HINTLOOP_LORA_RANK:-}" && "$role" == policy ]]; then
    # Every slot is one version of the adapter that answers may be on their way with.
    flags+=(--enable-lora --max-lora-rank "$HINTLOOP_LORA_RANK" --max-loras-per-batch "${HINTLOOP_LORA_SLOTS:-4}"
        --lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj)
fi

export HF_HUB_OFFLINE=1
if on_gpu; then
    exec python3 -m sglang.launch_server "${flags[@]}" ${extra[@]+"${extra[@]}"}
fi

if [[ -n "${HINTLOOP_LORA_RANK:-}" && "$role" == policy ]]; then
    flags+=(--lora-backend torch_native)
fi
python="$(engine_python sglang "$here")"
export SGLANG_USE_CPU_ENGINE=1
use_shared_cores
exec "$python" -m sglang.launch_server --device cpu --attention-backend torch_native \
    --max-total-tokens 16384 --max-running-requests 32 "${flags[@]}" ${extra[@]+"${extra[@]}"}
