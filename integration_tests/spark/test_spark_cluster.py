"""The jobs by spark-submit on a standalone cluster of two workers, which have Python and its packages, but not ours."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from integration_tests.conftest import Broker, started
from integration_tests.spark.test_audit_kafka import World, clean, due
from integration_tests.support.cluster import Cluster
from integration_tests.support.spark_cluster import SparkCluster
from kafka_timer import headers as names
from scripts.common.kafka_io import now_ms

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow, pytest.mark.spark, pytest.mark.broker]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as started:
        yield started


def test_an_audit_by_spark_submit_finds_what_a_local_one_finds(
    kafka: Broker, cluster: SparkCluster, tmp_path: Path
) -> None:
    world = World(kafka.bootstrap_servers)
    clean(world)
    now = now_ms()
    twice, lost = world.request(due(now)), world.request(due(now))
    world.deliver(twice.origin, now)
    world.deliver(twice.origin, now)
    assert world.audit(tmp_path / "local", "--master", "local[2]") == 3
    done = cluster.submit("audit", *world.arguments(tmp_path / "cluster"), settings=["spark.sql.shuffle.partitions=4"])
    assert done.returncode == 3, done.stderr
    assert "2 faults: 1 duplicate, 1 missing" in done.stdout
    here, there = (
        sorted(pq.read_table(tmp_path / name / "requests").to_pylist(), key=lambda row: row["origin"])
        for name in ("local", "cluster")
    )
    assert here == there
    assert [row["origin"] for row in there if row["class"] == "missing"] == [lost.origin.decode()]
    assert cluster.executors() == 2


def write_history(cluster: Cluster, count: int) -> None:
    """Write timers, half of them with ids, and their deliveries, to new topics."""
    timers, targets, partitions = "timer.requests", ("orders", "bills", "returns"), 4
    for topic in (timers, "timer.rejected", "timer.receipts", *targets):
        cluster.create(topic, partitions, message_timestamp_type="LogAppendTime")
    due_ms = str(now_ms())
    for number in range(count):
        offset, partition = divmod(number, partitions)
        target, value = targets[number % len(targets)], b"%d" % number
        asked = [(names.TOPIC, target), (names.DELIVER_MS, due_ms), (names.ID, f"order-{number}")]
        cluster.send(timers, value, headers=asked[: 2 + offset % 2], partition=partition)
        origin = (names.ORIGIN, f"{timers}/{partition}/{offset}")
        times = [(names.DELIVER_MS, due_ms), (names.RELEASED_MS, due_ms)]
        cluster.send(target, value, headers=[origin, *times, (names.ROLLS, "0")], partition=partition)
    cluster.flush()


def test_a_driver_of_128_mb_audits_two_million_records(cluster: SparkCluster, tmp_path: Path) -> None:
    """What comes to the driver does not grow with the data: the executors have 512 MB, each for a half of it."""
    with started("two-million", {}) as kafka:
        write_history(Cluster(kafka.bootstrap_servers), 1_000_000)
        asked = ["--bootstrap-servers", kafka.bootstrap_servers, "--out", str(tmp_path / "audit")]
        # Spark asks for 450 MB at least, of which it sets 300 aside; so a test of its own says that it is one.
        small = ["spark.driver.memory=128m", f"spark.testing.reservedMemory={16 << 20}"]
        done = cluster.submit("audit", *asked, settings=[*small, "spark.sql.shuffle.partitions=16"])
    assert done.returncode == 0, done.stderr
    assert " -Xmx128m " in done.stderr
    topics = pq.read_table(tmp_path / "audit" / "topics").to_pylist()
    assert (sum(each["delivered"] for each in topics), sum(each["faults"] for each in topics)) == (1_000_000, 0)
