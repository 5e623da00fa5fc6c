"""The jobs as two files, for clusters without our package.

    python -m spark_jobs.package jobs
        jobs/timer-bridge.zip          our packages, for driver and executors
        jobs/timer-bridge-job.py       the script for spark-submit; its first argument is the job

How to start them, and what else they need: docs/audit.md#on-a-cluster
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from spark_jobs.errors import command
from spark_jobs.platform.files import make_local_folder
from spark_jobs.platform.session import KAFKA_PACKAGE, write_zip

JOBS = {
    "archive": "spark_jobs.archive",
    "audit": "spark_jobs.audit",
    "backfill": "spark_jobs.backfill.job",
    "import": "spark_jobs.importer.job",
}
_STARTER = '''"""By spark_jobs.package: spark-submit --py-files timer-bridge.zip timer-bridge-job.py audit --help"""

import sys

from spark_jobs.package import job

sys.exit(job(sys.argv[1:]))
'''


def job(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in JOBS:
        print(f"timer-bridge-job.py: say which job, one of {', '.join(JOBS)}", file=sys.stderr)
        return 2
    return int(import_module(JOBS[argv[0]]).main(argv[1:]))


@command("package")
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.package", description="Write jobs for spark-submit.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args(argv).folder
    make_local_folder(folder)
    archive = write_zip(folder / "timer-bridge.zip")
    starter = folder / "timer-bridge-job.py"
    starter.write_text(_STARTER)
    print(f"spark-submit --packages {KAFKA_PACKAGE} --py-files {archive} {starter} {'|'.join(JOBS)} --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
