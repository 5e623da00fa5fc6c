"""Kafka's jars, fetched once into a cache, so that the embedded broker needs no Kafka distribution.

The list is `org.apache.kafka:kafka_2.13` and a binding for slf4j, with their dependencies.
"""

import os
import sys
from pathlib import Path

from schemas.maven_jars import JarList, ensure

KAFKA_VERSION = "4.3.0"
DEFAULT_CACHE = Path(".run/kafka-jars")

JARS = JarList("Kafka", KAFKA_VERSION, Path(__file__).with_name("kafka-jars.txt"))


if __name__ == "__main__":  # python -m bridge.dev.kafka_jars [CACHE]: the build of compose/kafka uses it
    sys.stdout.write(f"{ensure(JARS, Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_CACHE)}{os.linesep}")
