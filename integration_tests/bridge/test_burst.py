"""Case 6: many timers due in one millisecond: each once, in request order, in bounded memory.

`BURST=1000000 pytest integration_tests/bridge/test_burst.py` sends a million, as `make test-full` does.
"""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Receiver, send_all, timer
from scripts.common.processes import BridgeProcess

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

BURST = int(os.environ.get("BURST", "100000"))
MOST_GROWTH_MB = 200


def test_case_6_a_crowd_of_one_millisecond_leaves_once_in_order_and_in_bounded_memory(
    kafka: Broker, tmp_path: Path
) -> None:
    names, servers = Names(), kafka.bootstrap_servers
    admin, group = Admin(servers), names.group
    admin.create_topics([names.target], partitions=1, settings=BROKER_CLOCK)
    due_ms = time.time_ns() // 1_000_000 + 10_000 + BURST // 20
    with BridgeProcess(tmp_path, servers, names.arguments) as bridge:
        at_rest_mb = bridge.usage().peak_rss_mb
        requests = (timer(names.target, due_ms, b"%d" % number) for number in range(BURST))
        spans = send_all(servers, names.timers, requests)
        while sum(admin.committed(group, names.timers).values()) < BURST or time.time_ns() // 1_000_000 < due_ms:
            bridge.demand_alive()
            time.sleep(0.5)
        seen, order = DeliveryAccount(spans), dict[bytes, list[int]]()
        with Receiver(servers, [names.target]) as receiver:
            while seen.lost:
                bridge.demand_alive()
                seen.note(came := receiver.poll(1.0))
                for delivery in came:
                    assert delivery.appended_ms >= due_ms == delivery.due_ms
                    partition, _, offset = delivery.origin.rpartition(b"/")
                    order.setdefault(partition, []).append(int(offset))
            while receiver.poll(2.0):
                raise AssertionError("something came after all had come")
        growth_mb = bridge.usage().peak_rss_mb - at_rest_mb
    assert seen.counts() == (BURST, 0, 0, 0, 0)
    assert all(one < next_ for offsets in order.values() for one, next_ in pairwise(offsets))
    assert growth_mb <= MOST_GROWTH_MB
