"""Fetch the jars of Spark's Kafka source, so that later sessions need no network.

python -m spark_jobs.fetch
"""

from spark_jobs.platform.session import ensure_connector

if __name__ == "__main__":
    ensure_connector()
