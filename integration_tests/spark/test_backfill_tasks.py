"""Two backfills at once, and one that is killed in the middle: each once. Their tasks, as Spark's workers run them."""

import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import until
from kafka_timer import headers as names
from schemas.resent import Job, MarkTopics
from spark_jobs.backfill.publish import BODIES, PublishTask, _PartitionProducer
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import Row

pytestmark = pytest.mark.broker

COUNT = 60
TASK = """
import pickle, sys
job, batches = pickle.load(sys.stdin.buffer)
for batch in job(batches):
    print(batch.num_rows)
"""


class Gap:
    """Missing timers of one partition, and the task that fills it: 20 in each transaction, 20 a second."""

    def __init__(self, kafka: Broker) -> None:
        self.cluster = Cluster(kafka.bootstrap_servers)
        self.orders, self.timers = self.cluster.topic("orders", 2), self.cluster.topic("timers")
        topics = (self.cluster.topic(name, 2, cleanup_policy="compact") for name in ("marks", "former"))
        self.marks = MarkTopics(Job.BACKFILL, *topics)
        access = KafkaAccess(kafka.bootstrap_servers)
        self.job = PublishTask(access, f"backfill-{self.timers}", self.timers, self.marks, marks_partitions=2, per_s=20)

    def rows(self) -> list[Row]:
        same: Row = {"partition": 0, "requested_ms": 1, "due_ms": 2, "expire_ms": None, "target": self.orders}
        same |= {"want_partition": None, "key": b"k", "value": b"v", "headers": [], "occurrence": None}
        return [{**same, "origin": f"{self.timers}/0/{offset}", "offset": offset} for offset in range(COUNT)]

    def batches(self) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist(self.rows(), schema=BODIES)]

    def process(self) -> "subprocess.Popen[bytes]":
        """The task, as Spark's Python worker runs it, at one record a second."""
        worker = subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert worker.stdin is not None
        worker.stdin.write(pickle.dumps((replace(self.job, per_s=1), self.batches())))
        worker.stdin.close()
        return worker

    def outcomes(self) -> Counter[str]:
        """Of a run that nothing disturbs."""
        return Counter(row["outcome"] for batch in self.job(self.batches()) for row in batch.to_pylist())

    def delivered(self) -> list[bytes]:
        return [dict(each.headers())[names.ORIGIN] for each in self.cluster.read(self.orders)]

    def demand_each_once(self) -> None:
        assert sorted(self.delivered()) == sorted(row["origin"].encode() for row in self.rows())


@pytest.fixture
def gap(kafka: Broker) -> Gap:
    return Gap(kafka)


def test_a_backfill_that_is_killed_in_the_middle_is_gone_on_with(gap: Gap) -> None:
    with gap.process() as killed:
        try:
            until(lambda: bool(gap.delivered()))
        finally:
            killed.kill()
    sent = len(gap.delivered())
    assert 0 < sent < COUNT
    found = gap.outcomes()
    assert found["backfilled-before"] >= sent, "a commit may have been on its way when it died"
    assert found.total() == COUNT == found["backfilled-before"] + found["sent"]
    gap.demand_each_once()


def test_of_two_backfills_at_once_the_newer_goes_on_and_nothing_is_sent_twice(gap: Gap) -> None:
    older = _PartitionProducer(gap.job, 0)
    assert [told["outcome"] for told in older.send(gap.rows()[:2])] == ["sent"] * 2
    newer = _PartitionProducer(gap.job, 0)
    with pytest.raises(JobFailedError, match="another backfill has begun"):
        list(older.send(gap.rows()[2:4]))
    assert Counter(told["outcome"] for told in newer.send(gap.rows())) == {"backfilled-before": 2, "sent": COUNT - 2}
    gap.demand_each_once()
