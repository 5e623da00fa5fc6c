#!/usr/bin/env bash
# Starts a Docker engine of our own if none answers. Its output is for the shell:
#
#     eval "$(scripts/start-docker.sh)"      # sets DOCKER_HOST and DOCKERD_PID, or nothing if an engine answers
#     ...
#     kill "$DOCKERD_PID"
#
# It needs root and Debian's docker.io. Its images stay in .run/docker, its sockets are in /tmp.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

if docker info > /dev/null 2>&1; then
    exit 0
fi
[ "$(id -u)" = 0 ] || fail "no Docker engine answers, and only root can start one"
command -v dockerd > /dev/null || fail "no Docker engine is installed; on Debian: apt-get install docker.io"

data=$PWD/.run/docker
log=$PWD/.run/dockerd.log
mkdir -p "$data"
sockets=$(mktemp -d /tmp/dockerd.XXXXXX) # a socket's path must be short, and ours may not be
host=unix://$sockets/docker.sock

# start DRIVER: sets pid; true when the engine serves.
start() {
    : > "$log"
    setsid dockerd --data-root "$data" --exec-root "$sockets/exec" --pidfile "$sockets/pid" --host "$host" \
        --storage-driver "$1" < /dev/null >> "$log" 2>&1 &
    pid=$!
    # Woken by the log's line, by the daemon's end, or by the time-out.
    timeout 60 tail --pid="$pid" -n +1 -f "$log" 2> /dev/null | grep -q -m1 'API listen on' || true
    DOCKER_HOST=$host docker info > /dev/null 2>&1
}

for driver in overlay2 vfs; do
    if start "$driver"; then
        echo "export DOCKER_HOST=$host DOCKERD_PID=$pid"
        exit 0
    fi
    kill "$pid" 2> /dev/null || true
    timeout 20 tail --pid="$pid" -f /dev/null || kill -9 "$pid" 2> /dev/null || true
    rm -f "$sockets/pid"
done
fail "the Docker engine did not start; the end of $log:
$(tail -n 20 "$log")"
