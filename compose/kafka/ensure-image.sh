#!/usr/bin/env bash
# Makes sure that the Docker engine has apache/kafka in the version that we test against:
#   there already -> nothing;  else pulled;  else built here as a stand-in under the same tag (root, mmdebstrap).
# The tests and the compose file do not know which of the two they run on.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'from bridge.dev.kafka_jars import KAFKA_VERSION; print(KAFKA_VERSION)')
image=apache/kafka:$version

say() { echo "$(basename "$0"): $*"; }
has() { docker image inspect "$1" > /dev/null 2>&1; }

build() {
    local base context=$work/context
    mkdir -p "$context/jars"
    cp "$("$python" -m bridge.dev.kafka_jars)"/*.jar "$context/jars/"
    cp -r compose/kafka/Dockerfile compose/kafka/rootfs "$context/"
    base=$(compose/ensure-base.sh)
    say "building $image"
    # The classic builder: it pulls no other image.
    DOCKER_BUILDKIT=0 docker build --quiet --build-arg BASE="$base" --tag "$image" "$context"
}

has "$image" && exit 0
mkdir -p .run
exec 9> .run/kafka-image.lock
flock 9 # if two run at once, one builds
has "$image" && exit 0
if timeout 300 docker pull --quiet "$image"; then
    exit 0
fi
say "$image cannot be pulled; building a stand-in"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build
