"""Fetch the jars of Spark's Kafka connector, so that later sessions need no network, and print their folder.

python -m spark_jobs.fetch
"""

from spark_jobs.platform.session import fetched

if __name__ == "__main__":
    print(fetched())
