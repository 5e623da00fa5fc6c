"""A timer topic that grows under a running bridge, with timers pending."""

import json
import time
from pathlib import Path

import pytest

from integration_tests.bridge.test_run import Names, read
from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import TimerProducer, headers_for, partition_for
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

SERVED_WITHIN_S = 30
LIMITED = ["--max-pending", "16"]


@pytest.mark.broker
def test_a_running_bridge_serves_new_partitions_and_a_cancel_still_finds_older_timers(
    kafka: Broker, tmp_path: Path
) -> None:
    names, cluster = Names(), Cluster(kafka.bootstrap_servers)
    Admin(kafka.bootstrap_servers).create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    moved = [id_ for id_ in map(str, range(40)) if partition_for(id_, 2) != partition_for(id_, 4)][:3]
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, [*names.arguments, *LIMITED]) as bridge:
        where = {"bootstrap.servers": kafka.bootstrap_servers}
        with TimerProducer(where, timer_topic=names.timers) as timers:
            for id_ in moved:
                timers.schedule(names.target, f"old {id_}", delay="1h", id=id_)
        grown_s = time.monotonic()
        cluster.grow(names.timers, 4)
        for number in range(4):
            headers = headers_for(names.target, delay=0)
            cluster.send(names.timers, b"at %d" % number, headers=headers, partition=number)
        cluster.flush()
        served = read(kafka, names.target, 4)
        assert time.monotonic() - grown_s < SERVED_WITHIN_S
        assert sorted(each.value() for each in served) == [b"at %d" % number for number in range(4)]
        with TimerProducer(where, timer_topic=names.timers, partitions=4, other_partitions=2) as timers:
            timers.cancel(moved[0])
            timers.replace(moved[1], names.target, "new", delay=0)
        assert read(kafka, names.target, 5)[-1].value() == b"new"
        said = [json.loads(each.value())["kind"] for each in read(kafka, names.receipts, 4)]
        assert sorted(said) == ["cancelled", "cancelled", "not-found", "not-found"]
        assert "the topic has grown, it had 2 partitions" in bridge.log_path.read_text()
        for number in (2, 3):
            for value in range(5):
                headers = headers_for(names.target, delay=3000)  # none is due before the last one is read
                cluster.send(names.timers, b"%d" % value, headers=headers, partition=number)
        cluster.flush()
        sent = [dict(each.headers()) for each in read(kafka, names.target, 13)[5:]]
        late_ms = [int(each["timer-released-ms"]) - int(each["timer-deliver-ms"]) for each in sent]
        assert min(late_ms) >= 0
        assert max(late_ms) < 1000
        refused = [dict(each.headers())["timer-error"] for each in read(kafka, names.rejected, 2)]
        assert refused == [b"quota-exceeded"] * 2  # of 16 each of four partitions has 4
        assert f"{names.timers} grew from 2 to 4 partitions" in bridge.log_path.read_text()
    assert len(cluster.admin.list_topics(names.journal, timeout=PATIENCE_S).topics[names.journal].partitions) == 4
