"""Has Spark fetch its Kafka source once: two who do that at the same time spoil each other's files.

python -m spark_jobs.fetch
"""

from spark_jobs.session import session

if __name__ == "__main__":
    with session("fetch", master="local[1]"):
        pass
