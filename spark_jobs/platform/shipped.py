"""Zip file of `spark_jobs`, `schemas` and `kafka_timer`, without tests, for the Python workers of a cluster."""

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import kafka_timer
import schemas
import spark_jobs


def write_zip(path: Path) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as made:
        for package in (kafka_timer, schemas, spark_jobs):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*")):
                if file.suffix in (".py", ".html") and file.parent.name != "tests":
                    made.write(file, file.relative_to(folder.parent))
    return path
