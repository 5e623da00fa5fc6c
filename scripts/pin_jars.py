"""Write the SHA-512 of each jar into the lists of jars, as Maven Central delivers them now.

python -m scripts.pin_jars          after a change of versions; look at the diff: only jars that changed may differ
"""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.embedded import find_java
from bridge.kafka_jars import JARS as KAFKA
from schemas.jars import JarList, fetch_unchecked, file_name
from scripts.rocketmq_jars import JARS as ROCKETMQ
from spark_jobs.session import JARS as SPARK

LISTS = (KAFKA, ROCKETMQ, SPARK)


def pin(asked: JarList, java: str) -> None:
    comments = [line for line in asked.file.read_text().splitlines() if line.startswith("#")]
    with TemporaryDirectory() as work:
        arrived = fetch_unchecked(asked, Path(work), Path(work), java)
        sums = {jar: hashlib.sha512((arrived / file_name(jar)).read_bytes()).hexdigest() for jar in asked.sha512}
    asked.file.write_text("\n".join([*comments, *(f"{jar} {sha512}" for jar, sha512 in sums.items()), ""]))


if __name__ == "__main__":
    for jars in LISTS:
        pin(jars, find_java())
