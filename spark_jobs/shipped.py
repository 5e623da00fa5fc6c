"""What the Python workers of a cluster import of ours, as a zip file: `schemas` and `spark_jobs`, without tests."""

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import schemas
import spark_jobs

_LEFT_OUT = ("test_*.py", "conftest.py", "testing.py")


def write_zip(path: Path) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as made:
        for package in (schemas, spark_jobs):
            folder = Path(package.__path__[0])
            for file in sorted(folder.glob("*.py")):
                if not any(file.match(pattern) for pattern in _LEFT_OUT):
                    made.write(file, f"{folder.name}/{file.name}")
    return path
