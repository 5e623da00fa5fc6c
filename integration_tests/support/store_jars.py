"""Jars that Spark needs for stores besides a local path: Iceberg, Hadoop's client of S3, and parts of the AWS SDK."""

from pathlib import Path

from bridge.dev.embedded_kafka import find_java
from schemas.maven_jars import JarList, ensure

JARS = JarList("Iceberg's and S3's", "3.4.1", Path(__file__).with_name("store-jars.txt"))
"""Without what PySpark has. The version: Hadoop's."""
_CACHE = Path(".run/store-jars")


def ensure_jars() -> Path:
    return ensure(JARS, _CACHE, java=find_java())
