# Sourced by the engines' start.sh: their common arguments and how they use the machine.

# parse_engine_arguments NAME ARGS...
# Sets model, port, served_model_name, role, dtype, max_model_len and the array extra (what follows `--`).
parse_engine_arguments() {
    local name="$1"
    shift
    model="" port="" served_model_name="" role="" dtype=float32 max_model_len=2048 extra=()
    while (($#)); do
        case "$1" in
            --model | --port | --served-model-name | --role | --dtype | --max-model-len)
                if (($# < 2)); then
                    echo "engines/$name/start.sh: $1 needs a value" >&2
                    exit 2
                fi
                local variable="${1#--}"
                printf -v "${variable//-/_}" '%s' "$2"
                shift 2
                ;;
            --)
                shift
                extra=("$@")
                break
                ;;
            *)
                echo "engines/$name/start.sh: unknown argument '$1'; the engine's own flags go after --" >&2
                exit 2
                ;;
        esac
    done
    local required
    for required in model port served_model_name role; do
        if [[ -z "${!required}" ]]; then
            echo "engines/$name/start.sh: --${required//_/-} is missing" >&2
            exit 2
        fi
    done
    if [[ ! -f "$model/config.json" ]]; then
        echo "engines/$name/start.sh: --model '$model' holds no config.json; give a Hugging Face directory" >&2
        exit 2
    fi
    if [[ "$role" != policy && "$role" != prm ]]; then
        echo "engines/$name/start.sh: --role is '$role'; it is policy or prm" >&2
        exit 2
    fi
}

# A GPU is used when the driver shows one, unless HINTLOOP_DEVICE=cpu.
on_gpu() {
    [[ "${HINTLOOP_DEVICE:-auto}" != cpu ]] && command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1
}

# OpenMP threads that wait at a barrier spin by default.  With more threads than cores they spin away the
# time of the one they wait for: passive waiting was nine times as fast on a busy two-core machine.
use_shared_cores() {
    export OMP_NUM_THREADS="${HINTLOOP_ENGINE_THREADS:-$(nproc)}"
    export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-0}"
    export KMP_BLOCKTIME="${KMP_BLOCKTIME:-0}"
}

# lora_rank_step -> the least rank that vLLM has buffers for and that holds HINTLOOP_LORA_RANK
lora_rank_step() {
    local step
    for step in 8 16 32 64 128 256 320 512; do
        if ((HINTLOOP_LORA_RANK <= step)); then
            echo "$step"
            return
        fi
    done
    echo "engines: HINTLOOP_LORA_RANK is $HINTLOOP_LORA_RANK; engines serve at most 512" >&2
    exit 2
}
