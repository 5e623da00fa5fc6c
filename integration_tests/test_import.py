"""Import on a real broker: what was pending in one bridge is pending in another, once; rows that are no timers."""

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration_tests.cluster import Cluster
from integration_tests.conftest import Broker
from integration_tests.test_backfill import now_ms, until
from integration_tests.test_run import Names, command
from schemas import headers as names
from schemas.headers import MAX_INT64, Rules, parse
from scripts.processes import BridgeProcess
from spark_jobs import bulk_import
from spark_jobs.access import Access
from spark_jobs.bulk_import import ImportArguments, Send
from spark_jobs.errors import AuditTroubleError
from spark_jobs.import_rows import Mapped
from spark_jobs.session import session

RULES = Rules(max_delay_ms=MAX_INT64, roll_window_ms=1)


@pytest.fixture(scope="module")
def _spark() -> Iterator[None]:
    with session("tests", master="local[2]") as started:
        started.conf.set("spark.sql.shuffle.partitions", 2)
        yield
    gc.collect()


def asked(message: Any) -> tuple[Any, ...]:
    """Everything by which a request is delivered, but for how its time is spelled."""
    kept = [header for header in message.headers() if header[0] not in names.CONTROL]
    return (
        message.key(),
        message.value(),
        dict(message.headers()).get(names.KEY),
        parse(message.headers(), message.timestamp()[1], RULES),
        kept,
    )


@pytest.mark.timeout(900)
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.usefixtures("_spark")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_what_was_pending_is_imported_once_and_bad_rows_are_told(kafka: Broker, tmp_path: Path) -> None:
    cluster, topics = Cluster(kafka.bootstrap_servers), Names()
    there = [cluster.topic("timers", 2, message_timestamp_type="LogAppendTime") for _ in range(2)]
    rest = [(names.TOPIC, b"orders"), (names.DELAY_MS, b"3600000"), ("a", b"1"), ("a", None)]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, topics.arguments):
        for value, also in (
            (b"id", [(names.ID, b"x")]),
            (None, []),
            (b"key", [(names.KEY, b"k"), (names.PARTITION, b"3")]),
        ):
            cluster.send(topics.timers, value, key=b"own", headers=[*rest, *also])
        cluster.send(topics.timers, b"gone", headers=[(names.TOPIC, b"orders"), (names.DELAY_MS, b"0")])
        cluster.flush()
        until(lambda: len(cluster.values(topics.rejected)) == 1)  # there is no such topic
        pending = [asked(each) for each in cluster.read(topics.timers)[:3]]
    exported = tmp_path / "pending.parquet"
    assert command("export", str(tmp_path / "timer-data"), str(exported)).returncode == 0

    def run(file: Path, timer_topic: str, mapped: Mapped, kind: str) -> bulk_import.Imported:
        return bulk_import.run_import(
            ImportArguments(
                access=Access(kafka.bootstrap_servers),
                files=(str(file),),
                out=tmp_path / timer_topic,
                mapped=mapped,
                format=kind,
                timer_topic=timer_topic,
                imported_topic=f"imported-{topics.timers}",
            )
        )

    moved = Mapped({}, {}, 86_400_000)
    assert run(exported, there[0], moved, "parquet") == bulk_import.Imported(3, 0, 3, 0)
    assert run(exported, there[0], moved, "parquet") == bulk_import.Imported(3, 0, 0, 0)
    assert sorted(map(repr, map(asked, cluster.read(there[0])))) == sorted(map(repr, pending))

    lines, due = tmp_path / "orders.jsonl", now_ms() + 60_000
    rows = [{"when": due, "body": {"a": 1}}, {"when": "soon", "body": "v"}, {"when": due, "body": "x"}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mapped = Mapped({"due": "when", "value": "body"}, {"topic": "orders"}, 86_400_000)
    done = run(lines, there[1], mapped, "json")
    assert (done, done.exit_code) == (bulk_import.Imported(2, 1, 2, 0), 1)
    assert sorted(cluster.values(there[1])) == [b"x", b'{"a": 1}']  # type: ignore[type-var]
    (told,) = [json.loads(path.read_text()) for path in (tmp_path / there[1] / "rejects").glob("*.json")]
    assert told["reason"] == "due is 'soon': give epoch ms, or 2026-12-24T18:00:00Z"
    assert json.loads(told["row"])["body"] == "v"


def staged(
    kafka: Broker, folder: Path, values: list[bytes], *, partitions: int, id_: bytes | None = None
) -> tuple[Send, Path, Cluster]:
    """One part, as the first step leaves it."""
    cluster = Cluster(kafka.bootstrap_servers)
    timers = cluster.topic("timers", partitions, max_message_bytes="5000")
    marks = cluster.topic("marks", cleanup_policy="compact")
    headers = [{"name": names.TOPIC, "value": b"orders"}]
    headers += [{"name": names.ID, "value": id_}] if id_ is not None else []
    part = folder / "part-0.parquet"
    rows = [{"key": None, "value": value, "headers": headers} for value in values]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(bulk_import._REQUEST)), part)
    return Send(Access(kafka.bootstrap_servers), "name", timers, partitions, marks, f"import-{timers}"), part, cluster


@pytest.mark.broker
def test_a_part_goes_on_where_it_was_killed_and_passes_over_what_the_broker_does_not_take(
    kafka: Broker, tmp_path: Path
) -> None:
    values = [b"0", b"1", b"2", b"x" * 6_000, b"4"]
    job, part, cluster = staged(kafka, tmp_path, values, partitions=2)
    timers, rows = job.timer_topic, pq.read_table(part).to_pylist()
    killed = bulk_import._Part(job, part)
    assert killed._refusal(rows[:2], 2) is None
    batch = pa.RecordBatch.from_pylist([{"part": str(part)}])
    (told,) = job([batch])
    assert told.to_pylist() == [
        {"part": part.name, "sent": 0, "failed": "row 3: MSG_SIZE_TOO_LARGE"},
        {"part": part.name, "sent": 2, "failed": None},
    ]
    assert sorted(cluster.values(timers)) == [b"0", b"1", b"2", b"4"]  # type: ignore[type-var]
    with pytest.raises(AuditTroubleError, match="another run of this import"):
        list(killed.run())
    assert len(cluster.values(timers)) == 4, "it wakes up, and sends and marks nothing beside the newer one"


@pytest.mark.broker
def test_of_two_runs_the_newer_one_goes_on_and_no_row_is_lost_or_sent_twice(kafka: Broker, tmp_path: Path) -> None:
    job, part, cluster = staged(kafka, tmp_path, [b"%d" % n for n in range(5)], partitions=2)
    older = bulk_import._Part(job, part)
    newer = bulk_import._Part(job, part)
    with pytest.raises(AuditTroubleError, match="another run of this import"):
        list(older.run())
    assert list(newer.run()) == [{"part": part.name, "sent": 5, "failed": None}]
    assert sorted(cluster.values(job.timer_topic)) == [b"%d" % n for n in range(5)]  # type: ignore[type-var]


@pytest.mark.broker
def test_what_may_pass_ends_the_run_and_passes_over_nothing(kafka: Broker, tmp_path: Path) -> None:
    """Here: partitions that the topic does not have yet."""
    job, part, cluster = staged(kafka, tmp_path, [b"0", b"1"], partitions=2, id_=b"x")
    with pytest.raises(AuditTroubleError, match="run it again"):
        list(bulk_import._Part(replace(job, partitions=5_000), part).run())
    assert list(bulk_import._Part(job, part).run()) == [{"part": part.name, "sent": 2, "failed": None}]
    assert sorted(cluster.values(job.timer_topic)) == [b"0", b"1"]  # type: ignore[type-var]
