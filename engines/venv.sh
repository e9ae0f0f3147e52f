# Sourced by the engines' install.sh and start.sh: where an engine's virtual environment lies and how it is
# built.  The path carries a hash of everything that decides what is in it, so that clones share one and a
# changed recipe gets a new one.

# Without bytecode every start would compile the engine anew, which takes longer than the rest of it.
unset PYTHONDONTWRITEBYTECODE

# Raised when what is below installs something else from the same files.
recipe_revision=1

engine_cache="${XDG_CACHE_HOME:-$HOME/.cache}/hintloop/engines"

# engine_venv_path NAME FOLDER -> the directory for the recipe in FOLDER, existing or not
engine_venv_path() {
    local name="$1" folder="$2" hash
    hash="$(
        {
            echo "$recipe_revision"
            cd "$folder"
            # start.sh, and what it puts on Python's path, decide how the engine runs, not what is installed.
            find . -type f -not -name start.sh -not -path './hintloop_*' -not -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z |
                xargs -0 sha256sum
        } | sha256sum | cut -c1-12
    )"
    echo "$engine_cache/$name-$hash"
}

# engine_python NAME FOLDER -> the interpreter of a complete environment; fails with what to run otherwise
engine_python() {
    local venv
    venv="$(engine_venv_path "$1" "$2")"
    if [[ ! -f "$venv/.complete" ]]; then
        echo "engines/$1: not installed ($venv is absent or incomplete); run engines/$1/install.sh" >&2
        return 3
    fi
    echo "$venv/bin/python"
}

# Python 3.11 for the environment: HINTLOOP_PYTHON, else python3.11 on the path.
base_python() {
    local python="${HINTLOOP_PYTHON:-python3.11}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        echo "engines: '$python' is not Python 3.11; install it or set HINTLOOP_PYTHON" >&2
        return 3
    fi
    echo "$python"
}

# The plain release of torch carries CUDA.  Nothing of it is wanted here, so torch goes in first, alone, and
# is looked at before anything else is downloaded.
install_cpu_torch() {
    local venv="$1" requirement="$2"
    "$venv/bin/python" -m pip install -q --no-compile --no-deps "$requirement" >&2
    if ! "$venv/bin/python" - "$venv" <<'PY'
import pathlib, sys
version = next(pathlib.Path(sys.argv[1]).glob("lib/python3*/site-packages/torch/version.py")).read_text()
scope: dict = {}
exec(version, scope)
sys.exit(scope.get("cuda") is not None)
PY
    then
        echo "engines: pip offers '$requirement' built for CUDA; give pip the CPU builds of torch" \
            "(PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL) and run again" >&2
        return 4
    fi
}

# ensure_engine_venv NAME FOLDER AFTER
# Builds the environment unless it is complete, and prints its path.  AFTER is a function that is called with
# the environment and its site-packages before the environment is marked complete.  An environment cannot be
# moved once made (its scripts hold its path), so it is built in place and a stamp is written last: without
# the stamp it counts as half-built and is made anew.
ensure_engine_venv() {
    local name="$1" folder="$2" after="$3" venv python site_packages
    venv="$(engine_venv_path "$name" "$folder")"
    mkdir -p "$engine_cache"
    exec 9>"$venv.lock"
    if ! flock -n 9; then
        echo "engines/$name: another installation is running, waiting for it" >&2
        flock 9
    fi
    if [[ ! -f "$venv/.complete" ]]; then
        python="$(base_python)"
        echo "engines/$name: installing into $venv" >&2
        rm -rf "$venv"
        "$python" -m venv "$venv" >&2
        install_cpu_torch "$venv" "$(grep -E '^torch==' "$folder/constraints.txt")"
        # The file lists everything, so nothing is left to resolve and nothing else can come in.
        "$venv/bin/python" -m pip install -q --no-compile --no-deps -r "$folder/constraints.txt" >&2
        site_packages="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
        "$after" "$venv" "$site_packages" >&2
        touch "$venv/.complete"
    fi
    exec 9>&-
    echo "$venv"
}
