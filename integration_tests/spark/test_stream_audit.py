"""The streaming audit on a real broker: the classes of the batch audit, and nothing repeated behind a death."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

from bridge.page.find_verdicts import verdicts
from integration_tests.conftest import Broker
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import headers as names
from schemas.tables import AuditClass
from scripts.common.kafka_io import Admin
from spark_jobs.audit import main
from spark_jobs.audit_run import batches
from spark_jobs.backfill import job as backfill
from spark_jobs.backfill.arguments import BackfillArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.tests.records import AS_OF_MS, Record, delivery, request
from spark_jobs.tests.test_at_size import NOT_BY_RECORDS, template

# Many small runs of Spark.
pytestmark = [pytest.mark.timeout(900), pytest.mark.spark, pytest.mark.broker, pytest.mark.usefixtures("spark")]

FUTURE_MS = 32_503_680_000_000
"""The year 3000."""


def _place_of(row: dict[str, Any]) -> str:
    """Return the place of the request, or of the first copy of a later occurrence."""
    return "{topic}/{partition}/{offset}".format(**row) if "#" in row["origin"] else str(row["origin"])


class Stage:
    """Topics on which the records of spark_jobs.tests.records are played, at the times that they name."""

    def __init__(self, servers: str, out: Path) -> None:
        self._mark = uuid4().hex[:8]
        self.out, self._servers = out, servers
        self._places: dict[str, str] = {}
        known = ("timer.requests", "timer.rejected", "timer.receipts", "orders")
        self.topics = {name: f"{name}-{self._mark}" for name in known}
        any_time = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        Admin(servers).create_topics([*self.topics.values()], partitions=1, settings=any_time)
        self._producer = Producer({"bootstrap.servers": servers})
        # The topic is older than the requests: another bridge has delivered there.
        first: list[tuple[str, str | bytes | None]] = [(names.ORIGIN, b"other.timers/0/1"), (names.RELEASED_MS, b"1")]
        self._producer.produce(self.topics["orders"], b"first", timestamp=1, headers=first)
        assert self._producer.flush(PATIENCE_S) == 0
        self._undone = Producer({"bootstrap.servers": servers, "transactional.id": self._mark})
        self._undone.init_transactions(30)

    def play(self, *records: Record) -> None:
        for record in records:
            self._send(self._producer, record)
            assert self._producer.flush(PATIENCE_S) == 0

    def play_aborted(self, record: Record) -> None:
        self._undone.begin_transaction()
        self._send(self._undone, record)
        self._undone.flush(PATIENCE_S)
        self._undone.abort_transaction(30)

    def _send(self, producer: Producer, record: Record) -> None:
        def told(error: object, message: Message) -> None:
            assert error is None, error
            self._places[record.origin] = f"{message.topic()}/{message.partition()}/{message.offset()}"

        headers: Any = [(name, self._renamed(name, value)) for name, value in record.headers]
        value = record.value
        if record.topic == "timer.receipts":
            said = json.loads(record.value or b"")
            places = {name: self._places[said[name]] for name in ("request", "origin") if name in said}
            value = json.dumps({**said, **places}).encode()
        place = self.topics[record.topic], value, record.key, record.partition
        producer.produce(*place, told, timestamp=record.timestamp_ms, headers=headers)

    def _renamed(self, name: str, value: bytes | None) -> bytes | None:
        text = (value or b"").decode(errors="replace")
        if name == names.ORIGIN:
            return self._places[text].encode()
        if name == names.TOPIC:
            return self.topics[text].encode()
        return b"%d" % FUTURE_MS if text == str(AS_OF_MS + 1) else value

    def arguments(self, folder: str) -> list[str]:
        given = ["--bootstrap-servers", self._servers, "--out", str(self.out / folder), "--settle-ms", "0"]
        given += ["--timer-topic", self.topics["timer.requests"], "--rejected-topic", self.topics["timer.rejected"]]
        given += ["--receipts-topic", self.topics["timer.receipts"], "--tolerance-ms", "1000", "--late-ms", "1000"]
        return given

    def stream(self, *more: str) -> int:
        """To the end of what stands now."""
        return main([*self.arguments("stream"), "--stream", "--available-now", *more])

    @contextmanager
    def started(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a stream in a process of its own, and kill it at the end."""
        given = [*self.arguments("stream"), "--stream", "--every-s", "1", "--master", "local[2]", *more]
        command = [sys.executable, "-m", "spark_jobs.audit", *given]
        with (self.out / "stderr").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                yield process
            finally:
                process.kill()

    def told(self) -> list[dict[str, Any]]:
        """The rows of the batches that are done, in order."""
        done = sorted((self.out / "stream" / "spans").glob("day=*/batch=*/part.parquet"))
        parts = [path.parent.relative_to(self.out / "stream" / "spans") for path in done]
        return [row for part in parts for row in rows_of(self.out / "stream" / "requests" / part)]

    def classes(self, rows: Iterable[dict[str, Any]]) -> dict[int, str]:
        """By the offset that the record had when it was written down."""
        asked = {place: origin for origin, place in self._places.items() if "requests" in origin}
        offsets = {place: int(origin.rpartition("/")[2]) for place, origin in asked.items()}
        return {offsets[_place_of(row)]: row["class"] for row in rows}

    def batch_classes(self) -> dict[int, str]:
        main(self.arguments("batch"))
        return self.classes(rows_of(self.out / "batch" / "requests"))

    def minutes(self) -> list[dict[str, Any]]:
        found = sorted((self.out / "stream" / "minutes").glob("day=*/batch=*"))
        return [row for folder in found for row in rows_of(folder)]

    def count(self, pattern: str) -> int:
        return len([*(self.out / "stream").glob(pattern)])

    def until(self, done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end_s = time.monotonic() + 2 * PATIENCE_S
        while not done():
            assert process.poll() is None, (self.out / "stderr").read_text()
            assert time.monotonic() < end_s
            time.sleep(0.01)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(folder, partitioning=None).to_pylist())


@pytest.fixture
def stage(kafka: Broker, tmp_path: Path) -> Stage:
    return Stage(kafka.bootstrap_servers, tmp_path)


class KilledError(Exception):
    """Stands for a kill -9."""


def die(*_: object) -> None:
    raise KilledError


def test_a_stream_tells_the_classes_of_the_batch_audit_and_repeats_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every class, in two lots. In the first it dies before the batch is done, and before Spark knows that it is."""
    history, told_of = template()
    history.requests = [r for r in history.requests if r.header(names.TOPIC) != b"paused"]  # no control topic here
    expected = {offset: name for offset, name in told_of.items() if name != AuditClass.HELD}
    asked = sorted(history.requests, key=lambda record: record.offset)
    closed_soon = {b"timer.requests/0/%d" % n for n in (1, 2, 3)}
    at_once = [d for d in history.deliveries if d.header(names.ORIGIN) in closed_soon and d.offset < 90]
    stage.play(*[r for r in asked if r.offset < 30], *at_once)
    for place, step in (batches, "write_rows"), (batches, "end_part"):
        with monkeypatch.context() as patch:
            patch.setattr(place, step, die)
            with pytest.raises(KilledError):
                stage.stream()
    assert stage.stream() == 3
    told = stage.told()
    assert stage.classes(told)[1] == "delivered"
    assert len(told) == len({row["origin"] for row in told})
    assert [minute["deliveries"] for minute in stage.minutes()] == [3]

    stage.play(*[r for r in asked if r.offset >= 30])
    stage.play_aborted(request(90))
    stage.play(*history.rejections, *[d for d in history.deliveries if d not in at_once], *history.receipts)
    assert stage.stream() == 3
    found = stage.classes(stage.told())
    assert {**found, 53: "pending"} == stage.batch_classes() == expected
    assert {*found.values(), "pending"} == set(AuditClass) - NOT_BY_RECORDS - {AuditClass.HELD}
    latest = {row["origin"]: row["class"] for row in stage.told()}
    shown = verdicts(str(stage.out / "stream"), [origin.partition("#")[0] for origin in latest])
    assert {row["origin"]: row["class"] for row in shown} == latest
    delivered = {row["origin"] for row in stage.told() if row["lateness_ms"] is not None}
    assert sum(minute["deliveries"] for minute in stage.minutes()) == len(delivered)
    assert "1 early, 13 missing" in capsys.readouterr().err


@pytest.mark.slow
def test_the_watermark_makes_missing_what_was_pending_though_nobody_sends(stage: Stage, spark: SparkSession) -> None:
    """By the limit that is given; then it is delivered after all. State that is no more needed is gone."""
    missing, waits = request(0), request(1, due_ms=AS_OF_MS + 1)
    stage.play(missing, waits)
    a_century_ms = "3155760000000"
    assert stage.stream("--settle-ms", a_century_ms) == 0
    assert stage.told() == []
    assert stage.stream() == 3
    assert stage.classes(stage.told()) == {0: "missing"}
    asked = BackfillArguments(
        access=KafkaAccess("localhost:9092"),
        audit=stage.out / "stream",
        out=stage.out / "backfill",
        timer_topic=stage.topics["timer.requests"],
    )
    assert backfill.missing(asked).count() == 1
    stage.play(delivery(missing))
    assert stage.stream() == 0
    assert [row["class"] for row in stage.told()] == ["missing", "delivered"]
    assert stage.count("standing/day=*/batch=*") == stage.count("state/day=*/batch=*") == 2


STEPS = (
    "plan.json",
    "requests/day=*/batch=*",
    "evidence/day=*/batch=*",
    "minutes/day=*/batch=*/_SUCCESS",
    "batches/day=*/batch=*/part.parquet",
    "state/day=*/batch=*/part.json",
    "spans/day=*/batch=*/part.parquet",
)


@pytest.mark.slow
def test_killed_at_each_step_it_repeats_nothing_and_leaves_out_nothing(stage: Stage) -> None:
    """kill -9 as soon as the next trace of a step lies there; at the end SIGTERM, which is told as an exit code."""
    offset = 0
    for step in STEPS:
        asked = [request(n, due_ms=60_000 * n) for n in range(offset, offset + 4)]
        offset += len(asked)
        before = stage.count(step)
        with stage.started() as process:
            stage.play(*asked, *[delivery(one) for one in asked[:-1]], delivery(asked[0], offset=900))
            stage.until(lambda step=step, before=before: stage.count(step) > before, process)  # type: ignore[misc]
    with stage.started() as process:
        done = stage.count("spans/day=*/batch=*/part.parquet")
        stage.until(lambda: stage.count("spans/day=*/batch=*/part.parquet") > done + 2, process)
        process.terminate()
        assert process.wait(PATIENCE_S) == 3
    rows = stage.told()
    assert stage.classes(rows) == stage.batch_classes()
    assert sorted(row["deliveries"] for row in rows if row["class"] == "duplicate") == [2] * len(STEPS)
    assert sum(minute["deliveries"] for minute in stage.minutes()) == 3 * len(STEPS)


@pytest.mark.slow
def test_a_stream_audits_several_timer_topics_in_turn(stage: Stage, kafka: Broker) -> None:
    """Each in a folder of its own, batch after batch, until SIGTERM. A fault of one is its exit code."""
    asked, lost = request(0), request(1)
    stage.play(asked, lost, delivery(asked))
    other = f"more-{stage.topics['timer.requests']}"
    Admin(kafka.bootstrap_servers).create_topics([other], partitions=1, settings={})
    with stage.started("--timer-topic", other) as process:
        for topic in stage.topics["timer.requests"], other:
            spans = f"{topic}/spans/day=*/batch=*/part.parquet"
            stage.until(lambda spans=spans: stage.count(spans) > 2, process)  # type: ignore[misc]
        process.terminate()
        assert process.wait(PATIENCE_S) == 3
    told = (stage.out / "stderr").read_text()
    assert f"{stage.topics['timer.requests']}: batch 0 as of" in told
    assert f"{other}: audited as of" in told
    found = sorted((stage.out / "stream" / stage.topics["timer.requests"] / "requests").glob("day=*/batch=*"))
    assert sorted(row["class"] for folder in found for row in rows_of(folder)) == ["delivered", "missing"]
