#!/usr/bin/env bash
set -euo pipefail
export KAFKA_HEAP_OPTS="${KAFKA_HEAP_OPTS:--Xmx1G -Xms1G}"
export LOG4J_FILE=log4j2.yaml
exec /opt/kafka/bin/kafka-run-class.sh kafka.Kafka "$@"
