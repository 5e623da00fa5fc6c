#!/usr/bin/env bash
set -euo pipefail
exec /opt/kafka/bin/kafka-run-class.sh kafka.tools.StorageTool "$@"
