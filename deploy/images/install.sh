#!/bin/sh
# Installs packages of this repository into /opt/hintloop, with every version from the files in constraints/.
# Usage, in a build stage: [PYTHON=python3.11] install.sh PACKAGE...
set -eu
python="${PYTHON:-python}"
"$python" -m venv --without-pip /opt/hintloop
pip="$python -m pip --python /opt/hintloop/bin/python --disable-pip-version-check --no-cache-dir"
constraints=""
for file in constraints/*.txt; do constraints="$constraints -c $file"; done
# shellcheck disable=SC2086
$pip install -q $constraints setuptools
# Named together, the packages satisfy one another's requirements.
wanted=""
for package in "$@"; do wanted="$wanted ./$package"; done
# shellcheck disable=SC2086
$pip install -q $constraints --no-build-isolation $wanted
# Downloading models is nothing that a container of ours does; torch imports setuptools.
$pip uninstall -q -y hf-xet
/opt/hintloop/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || $pip uninstall -q -y setuptools
cd "$(/opt/hintloop/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
# Left out: tests (numpy imports one file of its own), headers and types (but those with which torch and Triton compile),
# a second implementation of zstandard, the names of places to which telephone numbers belong.
find . -type d \( -name tests -o -name test \) ! -path './numpy/*' ! -path './torch/*' -prune -exec rm -rf {} +
find ./numpy -path '*/tests/*' -type f ! -name '_natype.py' ! -name '__init__.py' -delete
find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name '*.a' \) \
  ! -path './torch/*' ! -path './triton/*' ! -path './nvidia/*' -delete
rm -rf zstandard/_cffi*.so zstandard/backend_cffi.py phonenumbers/geodata
