#!/usr/bin/env bash
# Installs what checks `deploy/` (hadolint, schemas, helm's library, promtool, amtool) into an environment of its own and
# prints its path as the last line. Idempotent; two runs at once do not collide. Needs no root: of Debian's packages only
# the files are taken, so no server is installed or started.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

unset PYTHONDONTWRITEBYTECODE
# Raised when what is below installs something else from the same file.
recipe_revision=1
recipe="$({ echo "$recipe_revision"; cat constraints/deploy.txt; } | sha256sum | cut -c1-12)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/hintloop/deploy"
venv="$cache/deploy-$recipe"

# Debian's packages that hold promtool, prometheus and amtool.
fetch_debian() {
    local folder
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "deploy-tools: no apt-get here: promtool and amtool are missing; put them into $venv/bin" >&2
        return 0
    }
    folder="$(mktemp -d)"
    (
        cd "$folder"
        apt-get download -qq prometheus prometheus-alertmanager >/dev/null 2>&1 || {
            [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null
            apt-get download -qq prometheus prometheus-alertmanager >/dev/null 2>&1
        }
        for package in *.deb; do dpkg-deb -x "$package" unpacked; done
        cp unpacked/usr/bin/{promtool,prometheus,amtool} "$venv/bin/"
    ) || echo "deploy-tools: Debian's prometheus could not be fetched: promtool and amtool are missing" >&2
    rm -rf "$folder"
}

complete() { [[ -x "$venv/bin/promtool" && -x "$venv/bin/amtool" ]]; }

mkdir -p "$cache"
exec 9>"$venv.lock"
flock 9
if [[ ! -f "$venv/.complete" ]]; then
    if [[ ! -f "$venv/.packages" ]]; then
        echo "scripts/deploy-tools.sh: installing into $venv" >&2
        rm -rf "$venv"
        "${HINTLOOP_PYTHON:-python3.11}" -m venv "$venv" >&2
        # The file lists everything, so nothing is left to resolve and nothing else can come in.
        "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-deps -r constraints/deploy.txt >&2
        touch "$venv/.packages"
    fi
    # Without Debian's tools the next run tries again; those that somebody put there stay.
    complete || fetch_debian
    if complete; then touch "$venv/.complete"; fi
fi
exec 9>&-
echo "$venv"
