#!/bin/sh
# Installs packages of this repository into /opt/hintloop, with every version from constraints/services.txt.
# Usage, in a build stage: install.sh PACKAGE...
set -eu
python -m venv /opt/hintloop
pip="/opt/hintloop/bin/python -m pip --disable-pip-version-check --no-cache-dir install -q -c constraints/services.txt"
$pip setuptools
# The packages stand for one another: the folder, and not an index, is where hintloop-contract comes from.
wanted=""
for package in "$@"; do wanted="$wanted ./$package"; done
# shellcheck disable=SC2086
$pip --no-build-isolation $wanted
# What only installing needed.
/opt/hintloop/bin/python -m pip uninstall -q -y setuptools pip
find /opt/hintloop -type d \( -name tests -o -name test \) -path '*/site-packages/*' ! -path '*/numpy/*' -prune -exec rm -rf {} +
