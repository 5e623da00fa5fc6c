"""Spark's Kafka connector, of the release of the installed PySpark: the jars that PySpark itself lacks.

spark-submit         --packages KAFKA_PACKAGE: Spark fetches it
a JVM that we start  spark-jars/<release>.txt lists the jars; they are fetched once, and checked before each start
--jars DIR           the jars are there: no network is used
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pyspark

from schemas.maven_jars import JarList, JarsError, ensure

RELEASE = pyspark.__version__
KAFKA_PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{RELEASE}"
"""Maven coordinates for spark-submit, which fetches the connector and its dependencies itself."""
_LISTS = Path(__file__).with_name("spark-jars")


def jar_list(release: str = RELEASE) -> JarList:
    """Return the jars for a release of PySpark. Raises JarsError if none are listed."""
    file = _LISTS / f"{release}.txt"
    if not file.exists():
        raise JarsError(
            f"no jars are listed for PySpark {release}, only for {', '.join(listed_releases())}: install one of these,"
            f" or give a folder that has {KAFKA_PACKAGE} and its dependencies with --jars"
        )
    return JarList("Spark's Kafka connector", release, file)


def listed_releases() -> list[str]:
    return sorted(path.stem for path in _LISTS.glob("*.txt"))


def connector_jars(given: Path | None = None) -> Sequence[Path]:
    """Return the jars: those of the folder `given`, else the listed ones, fetched if missing. Raises JarsError."""
    if given is None:
        return sorted(fetched().glob("*.jar"))
    needed = [f"spark-{part}-kafka-0-10_*-{RELEASE}.jar" for part in ("sql", "token-provider")]
    missing = [one for one in (*needed, "kafka-clients-*.jar", "commons-pool2-*.jar") if not any(given.glob(one))]
    if missing:
        raise JarsError(
            f"--jars {given}: {', '.join(missing)} missing; `python -m spark_jobs.fetch` on a machine with a network"
            f" and PySpark {RELEASE} prints the folder with the jars: copy it"
        )
    return sorted(given.glob("*.jar"))


def fetched() -> Path:
    """Return the folder with the listed jars, fetched if they are missing. Raises JarsError."""
    home = os.environ.get("JAVA_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timer-bridge" / "spark-jars"
    return ensure(jar_list(), cache, java=str(Path(home, "bin", "java")) if home else "java")
