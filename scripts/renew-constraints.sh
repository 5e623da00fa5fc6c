#!/usr/bin/env bash
# Writes constraints.txt from a fresh virtual environment. Names and versions only: no addresses, no hashes,
# so that the file says what was tested and not where somebody's machine got it from.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_CONSTRAINT
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"${PYTHON:-python3}" -m venv "$fresh/venv"
"$fresh/venv/bin/pip" install --quiet --upgrade --upgrade-strategy eager --editable '.[spark,dev]' setuptools
{
    echo '# Every package that `make setup` installs, transitive ones too. Written by `make constraints`.'
    "$fresh/venv/bin/pip" freeze --exclude-editable
    "$fresh/venv/bin/pip" list --format=freeze | grep '^setuptools=='
} | grep -v ' @ ' > constraints.txt.new
mv constraints.txt.new constraints.txt
