"""Parquet, CSV or JSON lines -> timers, each once; invalid rows go to a file, with the reason.

    FILE --1--> OUT/staged/part-*.parquet   requests as they will be sent, in a fixed order
           +--> OUT/rejects                 invalid rows, as JSON with a reason
    part-7 --2--> timer topic + marks of the part on timer.resent (spark_jobs.importer.send), one transaction
    marks  --3--> OUT/failed                rows that the broker refuses, as JSON with its code

Step 1 is done once: a later run on the same OUT continues step 2, at each part's mark. For users: docs/audit.md#import

Exit codes: 0 done, 1 failed, or rows were rejected or failed, 2 wrong arguments.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from uuid import uuid4
from zoneinfo import available_timezones

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from kafka_timer.headers import MAX_DELAY_MS
from schemas import resent
from schemas.resent import Job, MarkTopics
from spark_jobs.errors import UsageError, command
from spark_jobs.importer.forms import UTF_8, demand_found, opened, parse_encoding
from spark_jobs.importer.rows import FIELDS, HEADER, ColumnMapping
from spark_jobs.importer.send import MOST_ROWS, SENT, ImportMarks, SendTask
from spark_jobs.kafka.admin import Cluster
from spark_jobs.kafka.resend import MarkReader
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.flags import FormerTopic, JobArguments, JobParser, Option, Setting, location, switch
from spark_jobs.platform.lock import DemandHeld, folder_lock
from spark_jobs.platform.session import job_session

_VERSION = 2
"""Version of the format of OUT and of the marks."""
_STAGED_FOLDER, _REJECTS, _FAILED = "staged", "rejects", "failed"
_TASKS_PER_CORE = 4
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


@dataclass(frozen=True, kw_only=True)
class ImportArguments(JobArguments):
    files: tuple[str, ...]
    out: Annotated[Location, location("for rejects and what a rerun needs; a path, or a URI of Hadoop's")]
    mapped: ColumnMapping
    format: Annotated[
        str, Option(choices=("csv", "json", "parquet"), required=False, help="default: by the name of FILE")
    ]
    resent_topic: Setting = resent.TOPIC
    imported_topic: FormerTopic = resent.FORMER_TOPICS[Job.IMPORT]
    group: Setting = "timer-bridge"
    encoding: Annotated[
        str, Option(parse=parse_encoding, metavar="NAME", help="encoding of CSV and JSON; default %(default)s")
    ] = UTF_8
    dry_run: Annotated[bool, switch("look for rejects, send nothing")] = False


@dataclass(frozen=True)
class ImportResult:
    """Counts of rows. `sent`: by this run; the others by all runs. `failed`: refused by the broker."""

    staged: int
    rejected: int
    sent: int
    failed: int

    @property
    def exit_code(self) -> int:
        return 1 if self.rejected or self.failed else 0


def run_import(arguments: ImportArguments) -> ImportResult:
    """Run an import. Raises JobFailedError, UsageError."""
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    with job_session("import", arguments.out, arguments) as spark:
        with folder_lock(arguments.out) as demand_held:
            name = _stage(cluster, arguments, demand_held)
        staged = spark.read.parquet(str(arguments.out / _STAGED_FOLDER))
        sent, failed = (0, 0) if arguments.dry_run else _send(staged, cluster, arguments, name)
        rejected = spark.read.text(str(arguments.out / _REJECTS)).count()
        return ImportResult(staged.count(), rejected, sent, failed)


def _stage(cluster: Cluster, arguments: ImportArguments, demand_held: DemandHeld) -> str:
    """Stage the requests, unless an earlier run has, and return the name of this import."""
    told = arguments.out / "import.json"
    mapped = arguments.mapped
    asked = {
        "v": _VERSION,
        "files": list(arguments.files),
        "format": arguments.format,
        "timer_topic": arguments.timer_topic,
        "topic_id": cluster.topic_ids([arguments.timer_topic]).get(arguments.timer_topic),
        "encoding": arguments.encoding,
        **asdict(mapped),
    }
    text = files.read(told)
    if text is not None:
        known = json.loads(text)
        if known.get("v") != _VERSION:
            raise UsageError(f"--out {arguments.out} holds an import of another version: let that one finish it")
        if any(known.get(name, each) != each for name, each in asked.items()):
            why = "another import, one with other flags, or one into an earlier topic of that name"
            raise UsageError(f"--out {arguments.out} holds {why}: give another")
        return str(known["name"])
    with opened(arguments.files, arguments.format, mapped, arguments.encoding) as staging:
        staging.persist(StorageLevel.DISK_ONLY)
        try:
            demand_found(staging, mapped)
            good, bad = staging.where("reason IS NULL"), staging.where("reason IS NOT NULL")
            good.select("key", "value", "headers").write.mode("overwrite").parquet(str(arguments.out / _STAGED_FOLDER))
            bad.select("reason", "row").write.mode("overwrite").json(str(arguments.out / _REJECTS))
        finally:
            staging.unpersist()
    demand_held()
    name = uuid4().hex
    files.write(told, json.dumps({"name": name, **asked}).encode())
    return name


def _send(staged: DataFrame, cluster: Cluster, arguments: ImportArguments, name: str) -> tuple[int, int]:
    """Send the staged rows; return how many this run has sent, and how many the broker has refused in all runs."""
    cluster.ensure_marks(arguments.resent_topic)
    topics = MarkTopics(Job.IMPORT, arguments.resent_topic, arguments.imported_topic)
    marks = ImportMarks(MarkReader(arguments.access, topics), topics, name)
    marks.read()
    partitions, transactional_id = cluster.partitions[arguments.timer_topic], f"{arguments.group}-import"
    send = SendTask(arguments.access, marks, arguments.timer_topic, partitions, transactional_id)
    spark = staged.sparkSession
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", MOST_ROWS)  # values may be large
    rows = staged.select(F.expr("_metadata.file_name AS part"), F.expr("_metadata.row_index AS row"), "*")
    tasks = min(len(staged.inputFiles()), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    parts = rows.repartition(max(1, tasks), "part").sortWithinPartitions("part", "row")
    (sent,) = parts.mapInArrow(send, from_arrow_schema(SENT)).agg(F.coalesce(F.sum("sent"), F.lit(0))).collect()
    marks.read()
    refused = [(*at, code) for at, code in sorted(marks.refused.items())]
    told = spark.createDataFrame(refused, "part STRING, row BIGINT, failed STRING")
    told.coalesce(1).write.mode("overwrite").json(str(arguments.out / _FAILED))
    return int(sent[0]), len(refused)


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> ImportArguments:
    description = "Send the rows of files as timers, each once; a second run goes on."
    parser = JobParser("import", description, ImportArguments, "pending.parquet --out imported")
    arguments, rows = parser.add_argument_group("Arguments"), parser.add_argument_group("Rows")
    arguments.add_argument("files", nargs="+", metavar="FILE", help="Parquet, CSV with a header, or JSON lines.")
    text = f"{', '.join(FIELDS)}, or {HEADER}NAME; may repeat."
    rows.add_argument("--map", action="append", default=[], metavar="<field=column>", help=text)
    rows.add_argument("--set", action="append", default=[], metavar="<field=value>", help="For all rows; may repeat.")
    rows.add_argument("--zone", metavar="<name>", help="Zone of times without one, as Europe/Berlin; default: none.")
    rows.add_argument(
        "--max-delay-ms", type=int, metavar="<int>", default=MAX_DELAY_MS, help="The bridge's; default %(default)s."
    )
    given = parser.resolved(argv, environment)
    columns, same = (_pairs(f"--{name}", given.pop(name)) for name in ("map", "set"))
    zone = given.pop("zone", None)
    if zone is not None and zone not in available_timezones():
        raise UsageError(f"--zone {zone!r} is no time zone: give a name such as Europe/Berlin")
    given["mapped"] = ColumnMapping(columns, same, given.pop("max_delay_ms"), zone)
    given["files"] = tuple(given["files"])
    given.setdefault("format", _FORMATS.get(Path(given["files"][0]).suffix.lower()))
    if given["format"] is None:
        raise UsageError(f"{given['files'][0]}: unknown kind of file: give --format parquet, csv or json")
    return ImportArguments(**given)


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        field, equals, value = pair.partition("=")
        if not equals or not value or not (field in FIELDS or field.startswith(HEADER)):
            raise UsageError(f"{flag} {pair!r}: give FIELD=..., with one of {', '.join(FIELDS)}, {HEADER}NAME")
        found[field] = value
    return found


@command("import")
def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    done = run_import(arguments)
    print(f"{done.staged:,} requests, of which this run sent {done.sent:,}; {done.rejected:,} rows rejected")
    if done.rejected:
        print(f"Each with its reason: {arguments.out / 'rejects'}")
    if done.failed:
        print(f"{done.failed:,} were refused by the broker: {arguments.out / 'failed'}")
    return done.exit_code


if __name__ == "__main__":
    sys.exit(main())
