#!/bin/sh
# An audit on YARN in cluster mode. The Python environment is sent along, so the nodes need none; venv-pack: pip install it.
#
#   PYTHON   the Python of an environment with `pip install 'kafka-timer-bridge[spark]' venv-pack`, of the nodes' platform
#   OUT      a folder that all nodes see under this path, or a URI such as hdfs:///audits/orders
set -eu
PYTHON=${PYTHON:-python3}
OUT=${OUT:-/shared/audits/orders}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$PYTHON" -m spark_jobs.package "$work/jobs" > "$work/told"
"$PYTHON" -m venv_pack --quiet --output "$work/environment.tar.gz"
release=$("$PYTHON" -c 'import pyspark; print(pyspark.__version__)')

spark-submit --master yarn --deploy-mode cluster \
    --packages "org.apache.spark:spark-sql-kafka-0-10_2.13:$release" \
    --archives "$work/environment.tar.gz#environment" \
    --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=./environment/bin/python \
    --conf spark.executorEnv.PYSPARK_PYTHON=./environment/bin/python \
    --conf spark.yarn.maxAppAttempts=1 \
    --py-files "$work/jobs/timer-bridge.zip" "$work/jobs/timer-bridge-job.py" \
    audit --bootstrap-servers "${KAFKA:-kafka:9092}" --out "$OUT" --daily "$@"
