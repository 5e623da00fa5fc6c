#!/usr/bin/env bash
# Pulls each image of compose/.env by its tag and writes the digest that arrived: NAME=repository:tag@sha256:...
# Changes nothing if one cannot be pulled. Needs a Docker engine that reaches the registry.
set -euo pipefail
cd "$(dirname "$0")/.."
file=compose/.env
new=$(mktemp)
trap 'rm -f "$new"' EXIT

while IFS= read -r line; do
    if [[ $line =~ ^([A-Z_]+)=([^@]+) ]]; then
        name=${BASH_REMATCH[1]} image=${BASH_REMATCH[2]}
        docker pull --quiet "$image" > /dev/null || { echo "$image: cannot be pulled; $file is unchanged" >&2; exit 1; }
        found=$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$image")
        digest=$(grep -m 1 -o "^${image%:*}@sha256:[0-9a-f]\{64\}$" <<< "$found") \
            || { echo "$image: has no digest of ${image%:*}; $file is unchanged" >&2; exit 1; }
        line="$name=$image@${digest#*@}"
    fi
    printf '%s\n' "$line"
done < "$file" > "$new"
cat "$new" > "$file"
