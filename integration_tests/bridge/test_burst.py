"""Case 6: many timers due in one millisecond: each once, in request order, in bounded memory, also over a SIGTERM.

`BURST=1000000 pytest integration_tests/bridge/test_burst.py` sends a million, as `make test-full` does.
"""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names
from integration_tests.support.patience import PATIENCE_S
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import Admin, Delivery, Receiver, send_all, timer
from scripts.common.processes import BridgeProcess

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

BURST = int(os.environ.get("BURST", "100000"))
MOST_GROWTH_MB = 200


def test_case_6_a_crowd_of_one_millisecond_leaves_once_in_order_and_in_bounded_memory(
    kafka: Broker, names: Names, tmp_path: Path
) -> None:
    admin, servers = Admin(kafka.bootstrap_servers), kafka.bootstrap_servers
    names.create_target(kafka)
    due_ms = time.time_ns() // 1_000_000 + 10_000 + BURST // 20
    order: dict[bytes, list[int]] = {}

    def note(came: list[Delivery]) -> None:
        seen.note(came)
        for delivery in came:
            assert delivery.appended_ms >= due_ms == delivery.due_ms
            partition, _, offset = delivery.origin.rpartition(b"/")
            order.setdefault(partition, []).append(int(offset))

    def is_stored() -> bool:
        return sum(admin.committed(names.group, names.timers).values()) >= BURST

    requests = (timer(names.target, due_ms, b"%d" % number) for number in range(BURST))
    with Receiver(servers, [names.target]) as receiver:
        with BridgeProcess(tmp_path, servers, names.arguments) as bridge:
            at_rest_mb = bridge.usage().peak_rss_mb
            seen = DeliveryAccount(send_all(servers, names.timers, requests))
            while not (is_stored() and time.time_ns() // 1_000_000 > due_ms):
                bridge.demand_alive()
                time.sleep(0.5)
            note(receiver.poll(PATIENCE_S))
            assert order, "nothing was delivered"
            peaks_mb = [bridge.usage().peak_rss_mb]
            bridge.stop(timeout_s=30)  # as long as charts/timer-bridge has Kubernetes wait
        with BridgeProcess(tmp_path, servers, names.arguments) as bridge:
            while seen.lost:
                bridge.demand_alive()
                note(receiver.poll(1.0))
            while receiver.poll(2.0):
                raise AssertionError("something came after all had come")
            peaks_mb.append(bridge.usage().peak_rss_mb)
    assert seen.counts() == (BURST, 0, 0, 0, 0)
    assert all(one < next_ for offsets in order.values() for one, next_ in pairwise(offsets))
    assert max(peaks_mb) - at_rest_mb <= MOST_GROWTH_MB
