#!/usr/bin/env bash
# Starts vLLM's OpenAI server on 127.0.0.1 in place of this process: the pid stays the server's.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=../venv.sh
source "$here/../venv.sh"
# shellcheck source=../arguments.sh
source "$here/../arguments.sh"
parse_engine_arguments vllm "$@"

flags=(
    --model "$model" --served-model-name "$served_model_name"
    --host 127.0.0.1 --port "$port"
    --dtype "$dtype" --max-model-len "$max_model_len"
    --max-logprobs 64
    # Scores of given candidates come from a route of this group.
    --enable-scale-out
    --enable-auto-tool-choice --tool-call-parser "${HINTLOOP_TOOL_CALL_PARSER:-hermes}"
    # Sampling defaults come from the request alone, never from the checkpoint's folder.
    --generation-config vllm
    --worker-extension-cls hintloop_vllm.worker.WorkerExtension
    # The trainer's own way over a process group; costs nothing until it is used.
    --weight-transfer-config '{"backend": "hintloop"}'
    --disable-uvicorn-access-log
)
if [[ "$role" == policy ]]; then
    # Log-probabilities of the distribution that was sampled from; scores of prompts are not touched by it.
    flags+=(--logprobs-mode processed_logprobs)
fi

if [[ -n "${HINTLOOP_LORA_RANK:-}" && "$role" == policy ]]; then
    rank_step="$(lora_rank_step)"
    # Every slot is one version of the adapter that answers may be on their way with.
    flags+=(--enable-lora --max-lora-rank "$rank_step" --max-loras "${HINTLOOP_LORA_SLOTS:-4}")
    # Not the output head: with its adapter, scoring a prompt beside other requests ends the server.
    flags+=(--lora-target-modules q_proj k_proj v_proj o_proj gate_proj up_proj down_proj)
    export VLLM_ALLOW_RUNTIME_LORA_UPDATING=1
fi

# The worker extension lies beside this file.
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
# Dev mode opens the routes for pausing, reloading and flushing; the server listens on loopback only.
export VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
if on_gpu; then
    exec python3 -m vllm.entrypoints.openai.api_server "${flags[@]}" ${extra[@]+"${extra[@]}"}
fi

python="$(engine_python vllm "$here")"
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}"
# Threads are placed by the operating system: several engines and a trainer share the cores.
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
use_shared_cores
# With free threads the worker can live in the engine's process: one process less to start, and none that
# polls shared memory.  vLLM goes back to a separate worker on CPU unless this is 0.
export VLLM_ENABLE_V1_MULTIPROCESSING=0
# The first request for log-probabilities would compile a kernel for 20 s.
export TORCH_COMPILE_DISABLE=1
exec "$python" -m vllm.entrypoints.openai.api_server --enforce-eager --distributed-executor-backend uni \
    --max-num-seqs 32 "${flags[@]}" ${extra[@]+"${extra[@]}"}
