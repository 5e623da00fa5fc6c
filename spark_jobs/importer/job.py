"""Parquet, CSV or JSON lines -> timers, each once; invalid rows go to a file, with the reason.

    FILE --1--> OUT/staged/part-*.parquet   requests as they will be sent, in a fixed order
           +--> OUT/rejects                 invalid rows, as JSON with a reason
    part-7 --2--> timer topic + mark (name of the import and the part -> rows done) on timer.imported, one transaction
           +--> OUT/failed/part-7.json      rows that the broker refuses, before the mark passes them

Step 1 is done once: a later run on the same OUT continues step 2, at each part's mark. Each part has one transactional
id, so a new run fences a run that was killed or is still active.

    timer-bridge import orders.csv --map due=when --map value=body --map key=id --set topic=orders --out imports/orders
    timer-bridge import a.parquet b.parquet --out imports/moved      what `timer-bridge export` wrote on each instance

Exit codes: 0 done, 1 failed, or rows were rejected or failed, 2 wrong arguments.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from schemas.headers import ID
from schemas.murmur2 import partition_of
from spark_jobs.backfill.publish import ddl
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.importer.exports import is_export, older_partitions
from spark_jobs.importer.rows import BROKEN, FIELDS, HEADER, ColumnMapping, InvalidRowError
from spark_jobs.kafka.admin import (
    Cluster,
    OutgoingRecord,
    TransactionAbortedError,
    TransactionalSender,
    read_committed,
)
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.exit_codes import command
from spark_jobs.platform.files import make_local_folder
from spark_jobs.platform.flags import Option, Setting, directory, job_parser, resolved, switch
from spark_jobs.platform.session import job_session
from spark_jobs.platform.tables import rows_in

_DAY_MS = 86_400_000
_PATTERN = frozenset("*?[{")
_CHUNK = 1_000
_MOST_BYTES = 8 << 20
_RECORD_ERRORS = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP")
"""Codes that depend on the record alone: a retry would fail again."""
_HEADER = pa.struct([("name", pa.string()), ("value", pa.binary())])
_REQUEST = [("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(_HEADER))]
_STAGED = pa.schema([*_REQUEST, ("reason", pa.string()), ("row", pa.string())])
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_SENT = pa.schema([("part", pa.string()), ("sent", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class ImportArguments:
    """Arguments of an import."""

    access: KafkaAccess
    files: tuple[str, ...]
    out: Annotated[Path, directory("for rejects and what a rerun needs")]
    mapped: ColumnMapping
    format: Annotated[
        str, Option(choices=("csv", "json", "parquet"), required=False, help="default: by the name of FILE")
    ]
    timer_topic: Setting = "timer.requests"
    imported_topic: Setting = "timer.imported"
    group: Setting = "timer-bridge"
    dry_run: Annotated[bool, switch("look for rejects, send nothing")] = False
    master: str | None = None
    jars: Path | None = None


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
    make_local_folder(arguments.out)
    cluster = Cluster(arguments.access)
    cluster.require_topic(arguments.timer_topic)
    with job_session("import", arguments.out, arguments.master, arguments.jars) as spark:
        name = _stage(spark, arguments)
        sent = 0 if arguments.dry_run else _send(spark, cluster, arguments, name)
    rejects = (arguments.out / "rejects").glob("part-*")
    rejected = sum(path.read_bytes().count(b"\n") for path in rejects)
    return ImportResult(rows_in(arguments.out / "staged"), rejected, sent, len(_failed(arguments.out)))


def _stage(spark: SparkSession, arguments: ImportArguments) -> str:
    """Stage the requests, unless an earlier run has, and return the name of this import."""
    told = arguments.out / "import.json"
    mapped = arguments.mapped
    asked = {
        "files": list(arguments.files),
        "columns": dict(mapped.columns),
        "given": dict(mapped.given),
        "format": arguments.format,
        "timer_topic": arguments.timer_topic,
        "max_delay_ms": mapped.max_delay_ms,
    }
    if told.exists():
        known = json.loads(told.read_text())
        if any(known.get(name, each) != each for name, each in asked.items()):
            raise UsageError(f"--out {arguments.out} holds another import, or one with other flags: give another")
        return str(known["name"])
    for part in ("staged", "rejects"):  # of a run that was killed
        shutil.rmtree(arguments.out / part, ignore_errors=True)
    rows = _read(spark, arguments)
    there = [name for name in rows.columns if name != BROKEN]
    missing = sorted(set(arguments.mapped.columns.values()) - set(there))
    if missing:
        raise UsageError(f"--map: {', '.join(missing)} is not a column of the file, which has {', '.join(there)}")
    staging = rows.mapInArrow(ConvertTask(arguments.mapped), ddl(_STAGED)).persist(StorageLevel.DISK_ONLY)
    try:
        good = staging.where(F.col("reason").isNull()).select("key", "value", "headers")
        good.write.parquet(str(arguments.out / "staged"))
        staging.where(F.col("reason").isNotNull()).select("reason", "row").write.json(str(arguments.out / "rejects"))
    finally:
        staging.unpersist()
    draft = told.with_name("import.json.new")
    draft.write_text(json.dumps({"name": uuid4().hex, **asked}))
    draft.replace(told)
    return str(json.loads(told.read_text())["name"])


def _read(spark: SparkSession, arguments: ImportArguments) -> DataFrame:
    """Return the rows of the files. CSV and JSON values stay text: Spark's inferred schema would change some rows."""
    reader, files = spark.read.option("mode", "PERMISSIVE"), [*arguments.files]
    if arguments.format == "parquet":
        rows = reader.parquet(*files)
        may_be_several = len(files) > 1 or Path(files[0]).is_dir() or bool(_PATTERN & set(files[0]))
        if may_be_several and is_export(rows.columns) and not arguments.mapped.columns:
            return _newest(reader, files)
        return rows
    reader = reader.option("columnNameOfCorruptRecord", BROKEN)
    if arguments.format == "json":
        return reader.schema(_texts(reader.json(files).columns)).json(files)
    reader = reader.option("header", "true").option("multiLine", "true").option("escape", '"')
    return reader.schema(_texts(reader.csv(files).columns)).option("enforceSchema", "false").csv(files)


def _newest(reader: DataFrameReader, files: Sequence[str]) -> DataFrame:
    """Return the rows of several exports: each partition from the file with its newest store."""
    parts = []
    for file, older in older_partitions(files).items():
        names = [str(shard) for shard in older]
        if names:
            print(f"{file}: left out, as another file has them from later: {', '.join(names)}", file=sys.stderr)
        place = F.concat_ws("/", "topic", "partition")
        parts.append(reader.parquet(file).where(~place.isin(names)))
    return reduce(DataFrame.unionByName, parts)


def _texts(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in dict.fromkeys((*columns, BROKEN))])


@dataclass(frozen=True)
class ConvertTask:
    """Converts rows of any schema to requests, or a reason; called by mapInArrow."""

    mapped: ColumnMapping

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        now_ms = time.time_ns() // 1_000_000
        for batch in batches:
            yield pa.RecordBatch.from_pylist([self._staged(row, now_ms) for row in batch.to_pylist()], schema=_STAGED)

    def _staged(self, row: dict[str, Any], now_ms: int) -> dict[str, Any]:
        try:
            asked = self.mapped.request(row, now_ms)
        except InvalidRowError as wrong:
            told = {name: each for name, each in row.items() if name != BROKEN or each is not None}
            return {"reason": str(wrong), "row": json.dumps(told, default=_text)}
        headers = [{"name": name, "value": value} for name, value in asked.headers]
        return {"key": asked.key, "value": asked.value, "headers": headers}


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _failed(out: Path) -> set[str]:
    """Return the distinct lines: a run that was killed between a line and its mark has written the line twice."""
    return {line for path in (out / "failed").glob("*.json") for line in path.read_text().splitlines()}


def _send(spark: SparkSession, cluster: Cluster, arguments: ImportArguments, name: str) -> int:
    """Send the staged parts, and return the number of rows that this run has sent."""
    cluster.ensure_compacted(arguments.imported_topic, 1)
    parts = sorted(str(path.absolute()) for path in (arguments.out / "staged").glob("*.parquet"))
    if not parts:
        return 0
    failed = (arguments.out / "failed").absolute()
    failed.mkdir(exist_ok=True)
    send = SendTask(
        access=arguments.access,
        name=name,
        timer_topic=arguments.timer_topic,
        partitions=cluster.partitions[arguments.timer_topic],
        imported_topic=arguments.imported_topic,
        transactional_id=f"{arguments.group}-import",
        failed=failed,
    )
    tasks = spark.createDataFrame([(part,) for part in parts], "part STRING").repartition(len(parts), "part")
    (row,) = tasks.mapInArrow(send, ddl(_SENT)).agg(F.coalesce(F.sum("sent"), F.lit(0))).collect()
    return int(row[0])


@dataclass(frozen=True)
class SendTask:
    """Sends staged parts, by their paths; called by mapInArrow. `failed`: a folder that all workers share."""

    access: KafkaAccess
    name: str
    timer_topic: str
    partitions: int
    imported_topic: str
    transactional_id: str
    failed: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column("part").to_pylist():
                told = {"part": Path(path).name, "sent": _Part(self, Path(path)).run()}
                yield pa.RecordBatch.from_pylist([told], schema=_SENT)

    def outgoing(self, row: Mapping[str, Any]) -> OutgoingRecord:
        """Return the record. With an id, its partition is the one of its later cancel."""
        headers = [(header["name"], header["value"]) for header in row["headers"]]
        id_ = dict(headers).get(ID)
        partition = -1 if id_ is None else partition_of(id_, self.partitions)
        return OutgoingRecord(self.timer_topic, partition, row["key"], row["value"], headers)


class _Part:
    """One staged file, and how many of its rows are done."""

    def __init__(self, job: SendTask, path: Path) -> None:
        self._job, self._path = job, path
        self._mark = f"{job.name}/{path.name}"
        self._begin()

    def _begin(self) -> None:
        """Start the producer, then read the mark: after the start no other producer can move it."""
        id_ = f"{self._job.transactional_id}-{self._job.name}-{self._path.name}"
        self._sender = TransactionalSender(self._job.access, id_, "run of this import")
        marks = read_committed(self._job.access, self._job.imported_topic, 0)
        found = [json.loads(mark.value)["rows"] for mark in marks if mark.value and mark.key == self._mark.encode()]
        self._done = max(found, default=0)

    def run(self) -> int:
        """Send the rows after `_done`, and return how many were sent. A restart of the producer may move `_done`."""
        start, first, failed = self._done, 0, 0
        for batch in pq.ParquetFile(self._path).iter_batches(_CHUNK):
            rows, most = batch.to_pylist(), _CHUNK
            while self._done < first + len(rows):
                at = self._done
                todo = _transaction_rows(rows[at - first :], most)
                code = self._send(todo, at + len(todo))
                if code is not None and most == 1:
                    self._log_failure(at, code)
                    self._send([], at + 1)
                    failed += 1
                most = 1 if code is not None else most
            first += len(rows)
        return self._done - start - failed

    def _log_failure(self, row: int, code: str) -> None:
        """Write the row to disk before the mark passes it: else a run killed in between would lose it silently."""
        told = json.dumps({"part": self._path.name, "row": row, "failed": code})
        with (self._job.failed / f"{self._path.stem}.json").open("a") as file:
            file.write(told + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _send(self, rows: Sequence[Mapping[str, Any]], goal: int) -> str | None:
        """Send the rows and the mark. Return None if committed, else the broker's code for one of the rows."""
        before = self._done
        try:
            self._sender.send([*map(self._job.outgoing, rows), self._marked(goal)])
        except TransactionAbortedError as refused:
            code = str(refused)
            self._begin()  # the mark shows whether a commit without an answer took effect
            if self._done != before:
                return None
            if not rows or code not in _RECORD_ERRORS:
                raise JobFailedError(f"{self._path.name}: the broker takes no record ({code}): run it again") from None
            return code
        self._done = goal
        return None

    def _marked(self, rows: int) -> OutgoingRecord:
        value = json.dumps({"v": 1, "rows": rows}).encode()
        return OutgoingRecord(self._job.imported_topic, 0, self._mark.encode(), value, [])


def _transaction_rows(rows: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """Return at least one row, and no more than fit in a transaction."""
    size = 0
    for count, row in enumerate(rows[:most]):
        size += len(row["key"] or b"") + len(row["value"] or b"") + sum(len(h["value"] or b"") for h in row["headers"])
        if count and size > _MOST_BYTES:
            return rows[:count]
    return rows[:most]


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> ImportArguments:
    """Parse the flags. Raises UsageError, or argparse's SystemExit after --help or a wrong flag."""
    description = "Send the rows of files as timers, each once; a second run goes on."
    parser = job_parser("import", description, ImportArguments, "pending.parquet --out imported")
    parser.add_argument("files", nargs="+", metavar="FILE", help="Parquet, CSV with a header, or JSON lines")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help=f"{', '.join(FIELDS)}, or {HEADER}NAME; may repeat",
    )
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="for all rows; may repeat")
    parser.add_argument("--max-delay-ms", type=int, default=366 * _DAY_MS, help="the bridge's; default %(default)s")
    given = resolved(parser, ImportArguments, argv, environment)
    columns, same = (_pairs(f"--{name}", given.pop(name)) for name in ("map", "set"))
    given["mapped"] = ColumnMapping(columns, same, given.pop("max_delay_ms"))
    given["files"] = tuple(given["files"])
    given["format"] = given.get("format") or _format_of(given["files"][0])
    return ImportArguments(**given)


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        field, equals, value = pair.partition("=")
        if not equals or not value or not (field in FIELDS or field.startswith(HEADER)):
            raise UsageError(f"{flag} {pair!r}: give FIELD=..., with one of {', '.join(FIELDS)}, {HEADER}NAME")
        found[field] = value
    return found


def _format_of(file: str) -> str:
    found = _FORMATS.get(Path(file).suffix.lower())
    if found is None:
        raise UsageError(f"{file}: unknown kind of file: give --format parquet, csv or json")
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
