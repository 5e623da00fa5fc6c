#!/usr/bin/env bash
# Makes a Debian with Java and Python to build our images on, if none can be pulled. Prints its tag (root, mmdebstrap).
set -euo pipefail

base=timer-bridge/base:bookworm

say() { echo "$(basename "$0"): $*" >&2; }
fail() { say "$*"; exit 1; }

if ! docker image inspect "$base" > /dev/null 2>&1; then
    command -v mmdebstrap > /dev/null || fail "mmdebstrap is missing, which makes our own base: apt-get install mmdebstrap"
    [ "$(id -u)" = 0 ] || fail "making our own base needs root"
    say "making $base, a Debian with Java and Python"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mmdebstrap --quiet --variant=apt --include=openjdk-17-jre-headless,procps,python3-venv \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        bookworm "$work/base.tar" >&2
    docker import "$work/base.tar" "$base" > /dev/null
fi
echo "$base"
