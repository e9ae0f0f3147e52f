#!/bin/sh
# Installs packages of this repository into /opt/hintloop, with every version from constraints/services.txt.
# Usage, in a build stage: install.sh PACKAGE...
set -eu
python -m venv --without-pip /opt/hintloop
pip="python -m pip --python /opt/hintloop/bin/python --disable-pip-version-check --no-cache-dir"
$pip install -q -c constraints/services.txt setuptools
# Named together, the packages satisfy one another's requirements.
wanted=""
for package in "$@"; do wanted="$wanted ./$package"; done
# shellcheck disable=SC2086
$pip install -q -c constraints/services.txt --no-build-isolation $wanted
$pip uninstall -q -y setuptools
# numpy imports some of its own.
find /opt/hintloop -type d \( -name tests -o -name test \) ! -path '*/numpy/*' -prune -exec rm -rf {} +
