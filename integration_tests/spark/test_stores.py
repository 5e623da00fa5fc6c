"""Audits, their Iceberg table, and an import, on a path and on an S3-compatible store, set up as operators do it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration_tests.conftest import Broker
from integration_tests.spark.test_stream_audit import Stage
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import until
from integration_tests.support.s3_server import s3_server
from integration_tests.support.store_jars import ensure_jars
from kafka_timer.origin import TimerPartition
from schemas.pending_table import PENDING, STORES, format_stores
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.admin import committed_progress
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.session import connector_jars
from spark_jobs.tests.records import AS_OF_MS, delivery, request

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow, pytest.mark.spark, pytest.mark.broker]

TABLE = "lake.audits.requests"
READ = """
import json, sys
from pathlib import Path
from spark_jobs.platform import files
from spark_jobs.platform.session import session

with session("tests", master="local[2]", jars=Path(sys.argv[1])) as spark:
    spark.sql(files.read(files.parse_location(sys.argv[2]) / "current_requests.sql").decode())
    print(json.dumps([[[*map(str, row)] for row in spark.sql(asked).collect()] for asked in sys.argv[3:]]))
"""

WRITE = """
import sys
from pathlib import Path
from spark_jobs.platform import files
from spark_jobs.platform.session import session

with session("tests", master="local[2]", jars=Path(sys.argv[1])):
    for name in sys.argv[3:]:
        files.write(files.parse_location(sys.argv[2]) / Path(name).name, Path(name).read_bytes())
"""


class Audits:
    """Audits and what reads them, each in a process of its own, as its Spark has to have the jars of the store."""

    def __init__(self, servers: str, tmp_path: Path, place: str, settings: dict[str, str]) -> None:
        self.stage, self._servers, self.out = Stage(servers, tmp_path), servers, f"{place}/audit"
        lake = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": f"{place}/lake"}
        given = {f"spark.sql.catalog.lake{name}": value for name, value in lake.items()} | settings
        given["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        given["spark.sql.shuffle.partitions"] = "2"
        (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in given.items()))
        self._environment = os.environ | {"SPARK_CONF_DIR": str(tmp_path)}
        self._jars = tmp_path / "jars"
        self._jars.mkdir()
        for jar in (*connector_jars(), *ensure_jars().glob("*.jar")):
            (self._jars / jar.name).symlink_to(jar.resolve())

    def audit(self, *more: str) -> str:
        return self._job("audit", *self.stage.arguments("audit"), "--out", self.out, *more)

    def day(self, number: int, *more: str) -> str:
        """Audit as of the beginning of this day of 1970."""
        return self.audit("--daily", "--as-of", f"1970-01-{number:02}T00:00:00Z", *more)

    def backfill(self) -> str:
        topics = self.stage.topics
        until(self._has_coordinator)
        given = ["--bootstrap-servers", self._servers, "--audit", self.out, "--out", f"{self.out}-backfill"]
        given += ["--timer-topic", topics["timer.requests"], "--rejected-topic", topics["timer.rejected"]]
        return self._job("backfill.job", *given, "--journal-topic", topics["timer.receipts"])

    def import_exports(self, *exports: Path) -> str:
        """Put exports into the store, and import them from there."""
        place = f"{self.out}-exports"
        self._run("-c", WRITE, str(self._jars), place, *map(str, exports))
        given = ["--bootstrap-servers", self._servers, "--timer-topic", self.stage.topics["timer.requests"]]
        given += ["--imported-topic", f"imported-{self.stage.topics['timer.requests']}"]
        return self._job("importer.job", f"{place}/*.parquet", *given, "--out", f"{self.out}-imported")

    def _has_coordinator(self) -> bool:
        """Return True if the broker answers for a bridge's group: the first question makes its topic."""
        try:
            committed_progress(KafkaAccess(self._servers), "timer-bridge", self.stage.topics["timer.requests"], 1)
        except JobFailedError:
            return False
        return True

    def rows(self, *asked: str) -> list[list[list[str]]]:
        """Return the rows of each query; `current_requests` is the view of the audit's folder."""
        found: list[list[list[str]]] = json.loads(self._run("-c", READ, str(self._jars), self.out, *asked))
        return found

    def _job(self, name: str, *given: str) -> str:
        return self._run("-m", f"spark_jobs.{name}", *given, "--jars", str(self._jars), "--master", "local[2]")

    def _run(self, *words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        return done.stdout


@pytest.fixture(params=["path", "s3a"])
def audits(request: pytest.FixtureRequest, kafka: Broker, tmp_path: Path) -> Iterator[Audits]:
    at: AbstractContextManager[dict[str, str]] = s3_server() if request.param == "s3a" else nullcontext({})
    with at as settings:
        yield Audits(kafka.bootstrap_servers, tmp_path, "s3a://audits" if settings else str(tmp_path), settings)


def test_two_days_make_one_row_for_each_request_in_view_and_table(audits: Audits) -> None:
    """The first day is committed without its merge, like that of a run that was killed between them."""
    came, late, waits, lost = request(0), request(1), request(2, due_ms=AS_OF_MS + 1), request(3)
    stage = audits.stage
    stage.play(came, late, waits, delivery(came))
    assert "1 fault" in audits.day(2)
    stage.play(lost, delivery(late))
    assert "1 missing" in audits.day(3, "--table", TABLE)
    expected = {0: "delivered", 1: "delivered", 2: "pending", 3: "missing"}
    current = "SELECT origin, class FROM {} ORDER BY origin"
    asked = [current.format(name) for name in ("current_requests", TABLE)]
    parts = f"SELECT DISTINCT part, requested_day FROM {TABLE} ORDER BY part"
    view, table, of_parts = audits.rows(*asked, parts)
    assert stage.classes({"origin": origin, "class": name} for origin, name in table) == expected
    assert view == table
    assert of_parts == [["day=1970-01-02", "1970-01-01"], ["day=1970-01-03", "1970-01-01"]]
    assert ": 1\n" in audits.backfill()

    # The day is repeated: nothing changes, nor by the maintenance of docs/audit.md.
    audits.day(3, "--table", TABLE)
    compact = "CALL lake.system.rewrite_data_files(table => 'audits.requests', options => map('rewrite-all', 'true'))"
    expire = "CALL lake.system.expire_snapshots(table => 'audits.requests')"
    *_, again = audits.rows(compact, expire, asked[1])
    assert again == table


@pytest.mark.parametrize("audits", ["path"], indirect=True)
def test_a_stream_and_an_audit_in_one_run_fill_a_table(audits: Audits) -> None:
    came, lost = request(0), request(1)
    audits.stage.play(came, lost, delivery(came))
    audits.audit("--stream", "--available-now", "--table", TABLE)
    audits.audit("--out", f"{audits.out}-once", "--table", "lake.audits.once")
    by_batch, once = audits.rows(*(f"SELECT origin, class FROM {name}" for name in (TABLE, "lake.audits.once")))
    for rows in by_batch, once:
        found = audits.stage.classes({"origin": origin, "class": name} for origin, name in rows)
        assert found == {0: "delivered", 1: "missing"}


def export(file: Path, age: int, value: bytes) -> Path:
    """Write an export of one timer of partition 0. age: of its store."""
    times = dict.fromkeys(("due_ms", "visit_ms", "timestamp_ms"), time.time_ns() // 1_000_000 + 3_600_000)
    row = {"topic": "t", "partition": 0, "origin_offset": 1, "target": "orders", "rolls": 0, "value": value} | times
    with pq.ParquetWriter(file, PENDING) as writer:
        writer.add_key_value_metadata({STORES: format_stores({TimerPartition("t", 0): (age, 0, 0, 0)})})
        writer.write(pa.Table.from_pylist([row | {"headers": [], "is_paused": False}], PENDING))
    return file


def test_exports_are_imported_from_there_once(audits: Audits, kafka: Broker, tmp_path: Path) -> None:
    exports = [export(tmp_path / f"{age}.parquet", age, b"%d" % age) for age in (2, 1)]
    for sent in (1, 0):
        assert f"1 requests, of which this run sent {sent}; 0 rows rejected" in audits.import_exports(*exports)
    sent_values = Cluster(kafka.bootstrap_servers).values(audits.stage.topics["timer.requests"])
    assert sent_values == [b"2"], "of the newer store alone"
