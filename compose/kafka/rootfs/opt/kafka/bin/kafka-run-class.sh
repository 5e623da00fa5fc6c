#!/usr/bin/env bash
# Runs a class of Kafka's jars with the variables that the official scripts know.
set -euo pipefail
log4j=${KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=/opt/kafka/config/${LOG4J_FILE:-tools-log4j2.yaml}}
# shellcheck disable=SC2086  # each variable holds several options
exec java ${KAFKA_HEAP_OPTS:--Xmx256M} ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:+UseG1GC -XX:MaxGCPauseMillis=20} \
    -Djava.awt.headless=true "$log4j" ${KAFKA_OPTS:-} -cp '/opt/kafka/libs/*' "$@"
