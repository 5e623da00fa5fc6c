"""Kafka's own jars, fetched once into a cache: an embedded broker needs no download of a distribution.

The list is what `org.apache.kafka:kafka_2.13` and a binding for slf4j resolve to.
"""

import os
import sys
from pathlib import Path

from bridge.jars import JarList, ensure

KAFKA_VERSION = "4.3.0"
DEFAULT_CACHE = Path(".run/kafka-jars")

JARS = f"""
at.yawk.lz4:lz4-java:1.10.2
com.dynatrace.hash4j:hash4j:0.22.0
com.fasterxml.jackson.core:jackson-annotations:2.21
com.fasterxml.jackson.core:jackson-core:2.21.2
com.fasterxml.jackson.core:jackson-databind:2.21.2
com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.21.2
com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.21.2
com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2
com.github.ben-manes.caffeine:caffeine:3.2.0
com.github.luben:zstd-jni:1.5.6-10
com.google.re2j:re2j:1.8
com.typesafe.scala-logging:scala-logging_2.13:3.9.6
com.yammer.metrics:metrics-core:2.2.0
commons-beanutils:commons-beanutils:1.11.0
commons-collections:commons-collections:3.2.2
commons-digester:commons-digester:2.1
commons-logging:commons-logging:1.3.5
commons-validator:commons-validator:1.10.1
net.sf.jopt-simple:jopt-simple:5.0.4
net.sourceforge.argparse4j:argparse4j:0.7.0
org.apache.kafka:kafka-clients:{KAFKA_VERSION}
org.apache.kafka:kafka-coordinator-common:{KAFKA_VERSION}
org.apache.kafka:kafka-group-coordinator-api:{KAFKA_VERSION}
org.apache.kafka:kafka-group-coordinator:{KAFKA_VERSION}
org.apache.kafka:kafka-metadata:{KAFKA_VERSION}
org.apache.kafka:kafka-raft:{KAFKA_VERSION}
org.apache.kafka:kafka-server-common:{KAFKA_VERSION}
org.apache.kafka:kafka-server:{KAFKA_VERSION}
org.apache.kafka:kafka-share-coordinator:{KAFKA_VERSION}
org.apache.kafka:kafka-storage-api:{KAFKA_VERSION}
org.apache.kafka:kafka-storage:{KAFKA_VERSION}
org.apache.kafka:kafka-tools-api:{KAFKA_VERSION}
org.apache.kafka:kafka-transaction-coordinator:{KAFKA_VERSION}
org.apache.kafka:kafka_2.13:{KAFKA_VERSION}
org.apache.logging.log4j:log4j-api:2.25.4
org.apache.logging.log4j:log4j-core:2.25.4
org.apache.logging.log4j:log4j-slf4j-impl:2.25.4
org.bitbucket.b_c:jose4j:0.9.6
org.hdrhistogram:HdrHistogram:2.2.2
org.jspecify:jspecify:1.0.0
org.pcollections:pcollections:4.0.2
org.scala-lang:scala-library:2.13.18
org.scala-lang:scala-reflect:2.13.18
org.slf4j:slf4j-api:1.7.36
org.xerial.snappy:snappy-java:1.1.10.7
org.yaml:snakeyaml:2.5
""".split()


def ensure_jars(cache: Path = DEFAULT_CACHE, *, java: str = "java") -> Path:
    """The folder with exactly the jars of `JARS`, fetched when missing. Raises JarsError."""
    return ensure(JarList("Kafka", KAFKA_VERSION, tuple(JARS)), cache, java=java)


if __name__ == "__main__":  # python -m bridge.kafka_jars [CACHE]: the build of compose/kafka uses it
    sys.stdout.write(f"{ensure_jars(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_CACHE)}{os.linesep}")
