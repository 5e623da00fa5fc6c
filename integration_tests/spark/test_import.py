"""Import on a real broker: what was pending in one bridge is pending in another, once; rows that are no timers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, command
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import until
from kafka_timer import headers as names
from kafka_timer.control import Paused, control_record
from schemas.resent import Job, MarkTopics
from scripts.common.kafka_io import now_ms
from scripts.common.processes import BridgeProcess
from spark_jobs.errors import JobFailedError, UsageError
from spark_jobs.importer import job as bulk_import
from spark_jobs.importer import send
from spark_jobs.importer.job import ImportArguments
from spark_jobs.importer.rows import ColumnMapping
from spark_jobs.importer.send import ImportMarks, SendTask
from spark_jobs.kafka import resend
from spark_jobs.kafka.resend import CommittedRecord, MarkReader, read_committed
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.lock import folder_lock
from spark_jobs.platform.tables import Row

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark, pytest.mark.broker, pytest.mark.usefixtures("spark")]

EXPORTED = ColumnMapping({}, {}, 86_400_000)
EVERY_BYTE = bytes(range(256))
FOREIGN = (("a", EVERY_BYTE), ("a", None))


class OldBridge:
    """A bridge with timers of every fate, and a target that is paused: what is due there is held."""

    def __init__(self, kafka: Broker, folder: Path) -> None:
        self.cluster, self._topics, self._folder = Cluster(kafka.bootstrap_servers), Names(), folder
        self._came, self.target = self.cluster.topic("came"), self._topics.target
        self.cluster.create(self.target, 4, message_timestamp_type="LogAppendTime")
        right = {"message_timestamp_type": "LogAppendTime", "retention_bytes": "-1", "max_message_bytes": "8388608"}
        self.cluster.create(self._topics.timers, 2, compression_type="uncompressed", **right)
        self.cluster.create(self._topics.control, 1)
        key, value = control_record(Paused(self._topics.timers, self.target), on=True)
        self.cluster.send(self._topics.control, value, key=key)
        self._send(b"held", 10)
        self._send(b"held with all", 10, (names.ID, b"\xff1"), (names.KEY, b""), (names.PARTITION, b"3"))
        self._send(None, 10, (names.EXPIRE_MS, b"%d" % (now_ms() + 86_400_000)))
        for each in (b"far", b"far too"):
            self._send(each, 3_600_000, (names.ID, each))
        for each in (b"ended", b"replaced"):
            self._send(each, 3_600_000, (names.ID, b"i"))
        end = [(names.ACTION, b"cancel"), (names.ID, b"i")]
        self.cluster.send(self._topics.timers, None, headers=end, partition=len(b"ended") % 2)
        self._send(b"replaces", 3_600_000, (names.ID, b"i"), (names.ACTION, b"replace"))

    def exported(self, file: Path) -> list[dict[str, Any]]:
        """Live until something has rolled and no copy is on its way. Return the rows of the file."""
        arguments = [*self._topics.arguments, "--roll-window", "1s"]
        for lives in count(1):
            with BridgeProcess(self._folder, self.cluster.bootstrap_servers, arguments):
                self._send(b"came", 0, target=self._came)
                self.cluster.flush()
                until(lambda lives=lives: len(self.cluster.values(self._came)) == lives)  # type: ignore[misc]
            done = command("export", str(self._folder / "timer-data"), str(file))
            assert done.returncode == 0, done.stderr
            rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
            if not done.stderr and any(row["rolls"] for row in rows):
                return rows
        raise AssertionError

    def _send(
        self, value: bytes | None, delay_ms: int, *more: tuple[str, bytes | None], target: str | None = None
    ) -> None:
        ours = [(names.TOPIC, (target or self.target).encode()), (names.DELAY_MS, b"%d" % delay_ms)]
        headers = [*ours, *FOREIGN, *more]
        partition = len(value or b"") % 2
        self.cluster.send(self._topics.timers, value, key=EVERY_BYTE, headers=headers, partition=partition)


def test_what_was_pending_in_one_bridge_comes_out_of_another_once(kafka: Broker, tmp_path: Path) -> None:
    """What has ended, been replaced or come stays behind."""
    here, there, file = OldBridge(kafka, tmp_path / "here"), Names(), tmp_path / "pending.parquet"
    pending = here.exported(file)
    values = [row["value"] for row in pending]
    assert len(values) == 6
    assert set(values) == {b"held", b"held with all", None, b"far", b"far too", b"replaces"}

    with BridgeProcess(tmp_path / "there", kafka.bootstrap_servers, there.arguments):
        for sent in (len(pending), 0):
            done = imported(kafka, [file], tmp_path / "imported", there.timers)
            assert done == bulk_import.ImportResult(len(pending), 0, sent, 0)
        until(lambda: len(here.cluster.values(here.target)) == 3)
    found = {message.value(): message for message in here.cluster.read(here.target)}
    assert found.keys() == {b"held", b"held with all", None}
    for row in pending:
        if row["value"] in found:
            demand_as_it_was(found[row["value"]], row)
    again = tmp_path / "again.parquet"
    assert command("export", str(tmp_path / "there" / "timer-data"), str(again)).returncode == 0
    waits = [row for row in pending if row["value"] not in found]
    assert sorted(map(kept, pq.read_table(again).to_pylist())) == sorted(map(kept, waits))


def demand_as_it_was(message: Any, row: dict[str, Any]) -> None:
    headers = dict(message.headers())
    assert message.key() == (b"" if row["id"] else EVERY_BYTE)
    assert message.partition() == 3 or not row["id"]
    assert tuple(each for each in message.headers() if each[0] == "a") == FOREIGN
    assert headers["imported-from"].decode() == "{topic}/{partition}/{origin_offset}".format(**row)
    assert headers[names.DELIVER_MS] == b"%d" % row["due_ms"]


def kept(row: dict[str, Any]) -> str:
    """What an export and the one after the import have in common."""
    foreign = [each for each in row["headers"] if each["name"] not in {*names.CONTROL, "imported-from"}]
    same = [row[name] for name in ("target", "target_partition", "due_ms", "id", "key", "value")]
    return repr((*same, foreign))


def imported(
    kafka: Broker, files: Sequence[Path], out: Path, timer_topic: str, mapped: ColumnMapping = EXPORTED
) -> bulk_import.ImportResult:
    """Import files of one format, which is the suffix of their names."""
    asked = ImportArguments(
        access=KafkaAccess(kafka.bootstrap_servers),
        files=tuple(map(str, files)),
        out=out,
        mapped=mapped,
        format={".jsonl": "json"}.get(files[0].suffix, files[0].suffix[1:]),
        timer_topic=timer_topic,
        resent_topic=f"resent-{timer_topic}",
    )
    return bulk_import.run_import(asked)


PART = "part-0.parquet"


class Staged:
    """One part, as the first step leaves it, and its task; each `run` is another worker's."""

    def __init__(
        self, kafka: Broker, values: list[bytes], *, partitions: int, id_: bytes | None = None, most_bytes: int = 5000
    ) -> None:
        self.cluster = Cluster(kafka.bootstrap_servers)
        self.timers = self.cluster.topic("timers", partitions, max_message_bytes=str(most_bytes))
        self.topics = MarkTopics(
            Job.IMPORT, *(self.cluster.topic(name, cleanup_policy="compact") for name in ("marks", "former"))
        )
        headers = [{"key": names.TOPIC, "value": b"orders"}]
        headers += [{"key": names.ID, "value": id_}] if id_ is not None else []
        rows = [{"key": None, "value": value, "headers": headers} for value in values]
        self.rows: list[Row] = [{"part": PART, "row": at, **row} for at, row in enumerate(rows)]
        self._access = KafkaAccess(kafka.bootstrap_servers)
        self.marks = self.read_by_another()
        self.task = SendTask(self._access, self.marks, self.timers, partitions, f"import-{self.timers}")

    def read_by_another(self) -> ImportMarks:
        return ImportMarks(MarkReader(self._access, self.topics), self.topics, "name")

    def part(self) -> send._Part:
        return send._Part(replace(self.task, marks=self.read_by_another()), PART)

    def run(self) -> int:
        return self.part().send_all(iter(self.rows))

    def refused(self) -> dict[tuple[str, int], str]:
        self.marks.read()
        return self.marks.refused

    def sent(self) -> list[bytes | None]:
        return sorted(self.cluster.values(self.timers))  # type: ignore[type-var]


def test_a_row_that_is_refused_is_told_when_the_mark_passes_it(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends before is repeated, and one that ends after has told it."""
    staged = Staged(kafka, [b"x" * 6_000, b"1"], partitions=2)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(send._Part, "_pass_over", killed)
    with pytest.raises(KeyboardInterrupt):
        staged.run()
    monkeypatch.undo()
    assert staged.refused() == {}
    for sent in (1, 0):
        assert staged.run() == sent
        assert staged.refused() == {(PART, 0): "MSG_SIZE_TOO_LARGE"}
    assert staged.sent() == [b"1"]


def test_an_import_that_an_older_version_began_is_refused(kafka: Broker, tmp_path: Path) -> None:
    """Its staged rows and marks have another format."""
    timers = Cluster(kafka.bootstrap_servers).topic("timers", 2)
    (tmp_path / "import.json").write_text('{"name": "old"}')
    with pytest.raises(UsageError, match="an import of another version: let that one finish it"):
        imported(kafka, [tmp_path / "any.parquet"], tmp_path, timers)


def test_two_runs_do_not_stage_one_import(kafka: Broker, tmp_path: Path) -> None:
    """Each would send all rows, under a name of its own."""
    timers = Cluster(kafka.bootstrap_servers).topic("timers", 2)
    with folder_lock(tmp_path), pytest.raises(JobFailedError, match="another run is at work in --out"):
        imported(kafka, [tmp_path / "any.parquet"], tmp_path, timers)


def test_each_line_is_sent_as_it_stands_and_broken_ones_are_told(kafka: Broker, tmp_path: Path) -> None:
    """One schema for all would add the others' fields to each, and cut or fill up what does not fit."""
    soon = '{"when":"soon","body":"v"}'
    cluster = Cluster(kafka.bootstrap_servers)
    timers, due = cluster.topic("timers", 2), now_ms() + 60_000
    lines = tmp_path / "orders.jsonl"
    bodies = ['{"a":1}', '{"b":2}', '{"a":1.5}', "[1,2]", '"text"', "7"]
    texts = [f'{{"when":{due},"body":{body},"more":{{"h{at}":"{at}"}}}}' for at, body in enumerate(bodies)]
    lines.write_text("\n".join([*texts, soon, '{"when": ']))
    mapped = ColumnMapping({"due": "when", "value": "body", "headers": "more"}, {"topic": "orders"}, 86_400_000)
    done = imported(kafka, [lines], tmp_path / "json", timers, mapped)
    assert (done, done.exit_code) == (bulk_import.ImportResult(6, 2, 6, 0), 1)
    rejects = [
        line for path in (tmp_path / "json" / "rejects").glob("*.json") for line in path.read_text().splitlines()
    ]
    told = {row["reason"]: json.loads(row["row"])["body"] for row in map(json.loads, rejects)}
    assert told["due is 'soon': give epoch ms, or 2026-12-24T18:00:00Z"] == "v"
    found = {message.value(): dict(message.headers()) for message in cluster.read(timers)}
    assert {value.decode() for value in found} == {*bodies[:4], "text", "7"}
    assert {name for name in found[b'{"b":2}'] if name not in names.CONTROL} == {"h1"}

    table = tmp_path / "orders.csv"
    table.write_text(f"when,body\n{due},one\n{due},two, with a comma\n{due}\n")
    timers = cluster.topic("timers", 2)
    mapped = replace(mapped, columns={"due": "when", "value": "body"})
    done = imported(kafka, [table], tmp_path / "csv", timers, mapped)
    assert done == bulk_import.ImportResult(1, 2, 1, 0)
    assert cluster.values(timers) == [b"one"]


def test_a_part_goes_on_where_it_was_killed_and_passes_over_what_the_broker_does_not_take(kafka: Broker) -> None:
    staged = Staged(kafka, [b"0", b"1", b"2", b"x" * 6_000, b"4"], partitions=2)
    killed = staged.part()
    assert killed._send(staged.rows[:2]) is None
    batches = [pa.RecordBatch.from_pylist(rows) for rows in (staged.rows[:3], staged.rows[3:])]
    (told,) = staged.task(batches)
    assert told.to_pylist() == [{"part": PART, "sent": 2}]
    assert staged.refused() == {(PART, 3): "MSG_SIZE_TOO_LARGE"}
    assert staged.sent() == [b"0", b"1", b"2", b"4"]
    with pytest.raises(JobFailedError, match="another run of this import"):
        killed.send_all(iter(staged.rows))
    assert len(staged.sent()) == 4, "it wakes up, and sends and marks nothing beside the newer one"


def test_whether_a_row_is_too_large_is_the_topics_to_say(kafka: Broker) -> None:
    """A client's own limit is a megabyte."""
    values = [b"0", b"x" * 1_500_000, b"2"]
    staged = Staged(kafka, values, partitions=1, most_bytes=2 << 20)
    assert staged.run() == 3
    assert staged.sent() == sorted(values)


def test_rows_that_a_former_version_has_marked_are_not_sent_again(kafka: Broker) -> None:
    staged = Staged(kafka, [b"%d" % n for n in range(5)], partitions=2)
    staged.cluster.send(staged.topics.former, b'{"v": 1, "rows": 3}', key=f"name/{PART}".encode())
    staged.cluster.send(staged.topics.former, b'{"v": 1, "failed": "INVALID_RECORD"}', key=f"name/{PART}/1".encode())
    staged.cluster.flush()
    assert [staged.run(), staged.run()] == [2, 0]
    assert staged.sent() == [b"3", b"4"]
    assert staged.refused() == {(PART, 1): "INVALID_RECORD"}


def test_what_may_pass_ends_the_run_and_passes_over_nothing(kafka: Broker) -> None:
    """Here: partitions that the topic does not have yet."""
    staged = Staged(kafka, [b"0", b"1"], partitions=2, id_=b"x")
    right = staged.task
    staged.task = replace(right, partitions=5_000)
    with pytest.raises(JobFailedError, match="run it again"):
        staged.run()
    staged.task = right
    assert staged.run() == 2
    assert staged.sent() == [b"0", b"1"]


def test_marks_are_read_once_by_a_task_not_once_for_each_of_its_parts(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, offsets = Staged(kafka, [b"0", b"1", b"2"], partitions=2), []

    def noted(*place: Any) -> Iterator[CommittedRecord]:
        for mark in read_committed(*place):
            offsets.append(mark.offset)
            yield mark

    monkeypatch.setattr(resend, "read_committed", noted)
    rows = [{**row, "part": f"part-{at}", "row": 0} for at, row in enumerate(staged.rows)]
    assert [told.to_pylist()[0]["sent"] for told in staged.task([pa.RecordBatch.from_pylist(rows)])] == [1, 1, 1]
    assert len(offsets) == 2, "the first part's mark for the second, and the second's for the third"
