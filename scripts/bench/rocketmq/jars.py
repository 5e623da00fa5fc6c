"""RocketMQ's name server, broker and client, and the compiler for our client, as jars from Maven Central.

The list is what rocketmq-namesrv, rocketmq-broker and rocketmq-client resolve to, without annotations that are read by
compilers alone and without Netty's parts for other systems and protocols. ecj also compiles if Java is only a JRE.
"""

from pathlib import Path

from schemas.maven_jars import JarList, ensure

ROCKETMQ_VERSION = "5.5.0"
CACHE = Path(".run/rocketmq-jars")

JARS = JarList("RocketMQ", ROCKETMQ_VERSION, Path(__file__).with_name("rocketmq-jars.txt"))


def ensure_jars(java: str) -> Path:
    """Return the folder with exactly the jars of `JARS`, fetched when missing. Raises JarsError."""
    return ensure(JARS, CACHE, java=java)
