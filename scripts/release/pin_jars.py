"""Write the SHA-512 of each jar into the lists of jars, as Maven Central delivers them now.

Run `python -m scripts.release.pin_jars` after a change of versions. Only jars that changed may differ in the diff.
"""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.dev.embedded_kafka import find_java
from bridge.dev.kafka_jars import JARS as KAFKA
from integration_tests.support.store_jars import JARS as STORES
from schemas.maven_jars import JarList, fetch_unchecked, file_name
from scripts.bench.rocketmq.peer import JARS as ROCKETMQ
from spark_jobs.platform.session import jar_list, listed_releases

LISTS = (KAFKA, ROCKETMQ, STORES, *map(jar_list, listed_releases()))


def pin(asked: JarList, java: str) -> None:
    comments = [line for line in asked.file.read_text().splitlines() if line.startswith("#")]
    with TemporaryDirectory() as work:
        arrived = fetch_unchecked(asked, Path(work), Path(work), java)
        sums = {jar: hashlib.sha512((arrived / file_name(jar)).read_bytes()).hexdigest() for jar in asked.sha512}
    asked.file.write_text("\n".join([*comments, *(f"{jar} {sha512}" for jar, sha512 in sums.items()), ""]))


if __name__ == "__main__":
    for jars in LISTS:
        pin(jars, find_java())
