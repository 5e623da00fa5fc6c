#!/usr/bin/env bash
# Writes requirements/*.lock, with the SHA-256 of every file of each package, from pyproject.toml. A pinned version that
# still fits stays as it is. Arguments go to uv:
#
#   make lock                                          after a change of pyproject.toml
#   make lock ARGS='--upgrade-package starlette'       a newer version of one package; --upgrade: of all
#
# build.lock is installed first, as source packages are built without isolation. Each later file lists what the ones
# before it lack: run, the extras, dev, docs, proof. No file names a package index, nor our own client, which has no hash.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
# Install uv from the present lock, so that its hash is checked too.
"$work/venv/bin/pip" install --quiet --require-hashes --requirement <(sed -n '/^uv==/,/[^\\]$/p' requirements/proof.lock)
"$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], sep="\n")' > "$work/build.txt"

compile() { # OUT ARGUMENTS...
    "$work/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-package kafka-timer-client --output-file "$@" > /dev/null
}

# uv keeps the versions that it finds in its output file.
cat requirements/*.lock > "$work/all.lock"
compile "$work/all.lock" pyproject.toml "$work/build.txt" --all-extras "$@"

# A package that some extra needs on every platform has no marker in any file, as later files do not list it again.
sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\) \\$/s|^\1 ;.*|\1 \\\\|/p' "$work/all.lock" > "$work/everywhere.sed"

known=()
lock() { # NAME ARGUMENTS...
    local file=$work/$1.lock
    {
        echo "# Written by \`make lock\`; installed by \`pip install --require-hashes\`."
        compile "$file" "${@:2}" --constraint "$work/all.lock" "${known[@]}" && sed -f "$work/everywhere.sed" "$file"
    } > "$work/$1"
    mapfile -t -O "${#known[@]}" known < <(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package=\1/p' "$file")
    mv "$work/$1" "requirements/$1.lock"
}

lock build "$work/build.txt"
lock run pyproject.toml
extras=()
for extra in page rocksdb export registry msk tracing spark dev docs; do
    extras+=(--extra "$extra")
    lock "$extra" pyproject.toml "${extras[@]}"
done
lock proof pyproject.toml --all-extras
