"""A large history for the audit, written without a bridge.

A hundred records of the timer topic: 94 timers that are delivered, one of them after a roll, two that are rejected, one
that is cancelled, one that waits, the cancel and the copy. Half have ids. All are in one partition.
"""

import json

from integration_tests.support.cluster import Cluster
from kafka_timer import headers as names
from scripts.common.kafka_io import now_ms

TIMERS, REJECTED, RECEIPTS = "timer.requests", "timer.rejected", "timer.receipts"
TARGETS = ("orders", "bills", "returns")
PARTITIONS, GROUP = 4, 100
ROLLED, REFUSED, ENDED, CANCEL, PENDING, COPY = 93, (94, 95), 96, 97, 98, 99
CLASSES = {"delivered": 94, "rejected": 2, "cancelled": 1, "cancel-done": 1, "pending": 1}
"""Rows of a hundred records by class. A copy has no row."""
_FAR_MS = 30 * 86_400_000


def write_history(cluster: Cluster, groups: int) -> dict[str, int]:
    """Write `groups` times a hundred requests with their outcomes to new topics. Return the number of rows by class."""
    for topic in (TIMERS, REJECTED, RECEIPTS, *TARGETS):
        cluster.create(topic, PARTITIONS, message_timestamp_type="LogAppendTime")
    begin_ms = now_ms()
    for group in range(groups):
        for nth in range(GROUP):
            _write_request(cluster, group, nth, begin_ms)
    cluster.flush()
    return {name: count * groups for name, count in CLASSES.items()}


def _write_request(cluster: Cluster, group: int, nth: int, begin_ms: int) -> None:
    """Write a request and its outcome."""
    partition, first = group % PARTITIONS, group // PARTITIONS * GROUP
    timer = ROLLED if nth == COPY else nth
    origin, own_id = f"{TIMERS}/{partition}/{first + timer}", (names.ID, f"order-{group}-{timer}")

    def send(topic: str, value: bytes | None, *headers: tuple[str, str]) -> None:
        cluster.send(topic, value, key=b"%d" % group, headers=headers, partition=partition)

    if nth == CANCEL:
        send(TIMERS, None, (names.ACTION, "cancel"), (names.ID, f"order-{group}-{ENDED}"))
        ended = f"{TIMERS}/{partition}/{first + ENDED}"
        receipt = {"v": 1, "kind": "cancelled", "at_ms": begin_ms, "request": origin, "origin": ended}
        send(RECEIPTS, json.dumps(receipt).encode())
        return
    target, due_ms = TARGETS[timer % 3], str(begin_ms + (_FAR_MS if nth in (ENDED, PENDING) else 0))
    asked = [(names.TOPIC, target), (names.DELIVER_MS, due_ms), *([own_id] if timer % 2 == 0 else [])]
    copied = [(names.ORIGIN, origin), (names.ROLLS, "1")]
    send(TIMERS, b"%d/%d" % (group, timer), *(copied if nth == COPY else []), *asked)
    if nth in REFUSED:
        why = [(names.ERROR, "unknown-topic"), (names.ERROR_DETAIL, "no such topic")]
        send(REJECTED, b"%d/%d" % (group, timer), *asked, *why, (names.ORIGIN, origin))
    elif nth <= ROLLED:
        times = [(names.DELIVER_MS, due_ms), (names.RELEASED_MS, due_ms)]
        send(target, b"%d/%d" % (group, timer), (names.ORIGIN, origin), *times, (names.ROLLS, f"{nth == ROLLED:d}"))
