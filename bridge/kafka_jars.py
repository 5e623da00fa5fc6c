"""Kafka's own jars, fetched once into a cache: an embedded broker needs no download of a distribution.

    PySpark ships Ivy -> Ivy fetches the list below from Maven Central -> <cache>/<version-digest>/*.jar

The list is what `org.apache.kafka:kafka_2.13` and a binding for slf4j resolve to. It is spelled out, and the POMs are
not followed, for three reasons: every run gets the same bytes; the jars come in 10 s instead of 40; and Ivy's
`-types jar` would leave out the five that their POMs call bundles (scala-logging, snappy-java, ...).
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bridge.errors import BridgeError

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

IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
IVY_MODULE = """<ivy-module version="2.0">
  <info organisation="local" module="embedded-kafka"/>
  <dependencies defaultconfmapping="*->default">{dependencies}</dependencies>
</ivy-module>
"""


class JarsError(BridgeError):
    """The jars are not there and could not be fetched. The message says what to do."""


def ensure_jars(cache: Path = DEFAULT_CACHE, *, java: str = "java") -> Path:
    """The folder with exactly the jars of `JARS`, fetched when missing.

    A folder under its final name is complete: it is filled under another name and then renamed. Of several processes
    that come at once, one fetches and the others wait at the lock.
    """
    folder = cache / f"{KAFKA_VERSION}-{_digest()}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch_into(folder, java)
    return folder


def _digest() -> str:
    return hashlib.sha256("\n".join(JARS).encode()).hexdigest()[:8]


def _fetch_into(folder: Path, java: str) -> None:
    work = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder.parent.resolve()))
    try:
        _run_ivy(java, _find_ivy(folder), work)
        arrived = work / "jars"
        count = len(list(arrived.glob("*.jar")))
        if count != len(JARS):
            raise JarsError(f"fetched {count} of {len(JARS)} jars; run it again, or {_by_hand(folder)}")
        arrived.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find_ivy(folder: Path) -> Path:
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that would take a second
    for place in spec.submodule_search_locations or [] if spec else []:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError(
        f"Kafka's jars are fetched with the Ivy that PySpark ships, and PySpark is not installed: "
        f"pip install 'kafka-timer-bridge[spark]', or {_by_hand(folder)}"
    )


def _run_ivy(java: str, ivy: Path, work: Path) -> None:
    dependency = '<dependency org="{}" name="{}" rev="{}" transitive="false"/>'
    dependencies = "".join(dependency.format(*jar.split(":")) for jar in JARS)
    (work / "ivysettings.xml").write_text(IVY_SETTINGS.format(cache=work / "ivy"))
    (work / "ivy.xml").write_text(IVY_MODULE.format(dependencies=dependencies))
    command = [java, "-jar", str(ivy), "-settings", str(work / "ivysettings.xml"), "-ivy", str(work / "ivy.xml")]
    command += ["-confs", "default", "-types", "jar", "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
    log = work / "ivy.log"
    with log.open("w") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise JarsError(f"Ivy could not fetch Kafka's jars (exit code {code}); its last words:\n{tail}")


def _by_hand(folder: Path) -> str:
    return f"put the jars of a Kafka {KAFKA_VERSION} distribution (its libs/*.jar) into {folder}"


if __name__ == "__main__":  # python -m bridge.kafka_jars [CACHE]: the build of compose/kafka uses it
    sys.stdout.write(f"{ensure_jars(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_CACHE)}{os.linesep}")
