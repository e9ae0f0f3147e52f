#!/usr/bin/env bash
# Becomes an inference engine inside a container: the command of engines/<name>/start.sh, on the weights that were
# released last, reachable by the other containers.
# Usage: serve.sh vllm|sglang policy|prm PROFILE [FLAG...]
set -euo pipefail
engine="$1" role="$2" profile="$3"
shift 3
if [[ "${HINTLOOP_PROFILE:-}" != "$profile" ]]; then
  echo "serve.sh: this engine belongs to the profile $profile, and PROFILE is '${HINTLOOP_PROFILE:-}', whose settings" \
    "the services read; set PROFILE=$profile and COMPOSE_PROFILES=$profile in .env" >&2
  exit 2
fi
if [[ ! -f /model/config.json ]]; then
  echo "serve.sh: MODEL_PATH holds no config.json; set it in .env to the folder of a Hugging Face model" >&2
  exit 2
fi
if [[ "${HINTLOOP_DEVICE:-}" != cpu ]] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "serve.sh: this container sees no GPU (nvidia-smi -L fails); is the NVIDIA Container Toolkit installed?" \
    "Without a GPU: PROFILE=cpu" >&2
  exit 2
fi
model=/model
# An adapter is brought by the trainer; weights are there from the start.
if [[ "$role" = policy && -f /weights/current/config.json ]]; then
  model="$(readlink -f /weights/current)"
fi
scripts="${HINTLOOP_ENGINES_DIR:-/opt/engines}"
arguments=(--model "$model" --port 30000 --role "$role" --dtype "${ENGINE_DTYPE:-bfloat16}"
  --served-model-name "$role" --max-model-len "${MAX_MODEL_LEN:-8448}")
extra=(--host 0.0.0.0)
# vLLM serves its figures anyway.
[[ "$engine" != sglang ]] || extra+=(--enable-metrics)
exec bash "$scripts/$engine/start.sh" "${arguments[@]}" -- "${extra[@]}" "$@"
