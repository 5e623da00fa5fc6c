"""What topics have to be like: rules over their configuration."""

import pytest

from bridge.config.topic_requirements import (
    REASON_BYTES,
    faults,
    fetch_limits,
    journal_bytes,
    journal_faults,
    journal_topic,
    missing_right,
    rejected_faults,
    rejected_topic,
    timer_topic,
)
from bridge.intake.copies_in_flight import id_hash
from bridge.intake.decide import MOST_LIMITED, MOST_PAUSED
from schemas.headers import MAX_INT64, Rules
from schemas.journal import END, CopyInFlight, JournalRecord, Wait
from schemas.progress import Key
from timer.schedule.target_backlog import MAX_EXTRA_KEY_RANGES

DAY_MS = 86_400_000


@pytest.mark.parametrize("waits", [MOST_PAUSED, MOST_PAUSED + MOST_LIMITED])
def test_the_journal_has_room_for_the_most_that_one_transaction_decides(waits: int) -> None:
    flight = CopyInFlight(MAX_INT64, 2**31 - 1, MAX_INT64, "x" * 249, id_hash(b"i" * 1024), "f" * 32)
    most = JournalRecord(
        from_offset=0,
        next_offset=MAX_INT64,
        rules=Rules(max_delay_ms=DAY_MS, roll_window_ms=DAY_MS, own_topics=frozenset(["x" * 249, "y" * 249])),
        refused=(MAX_INT64,) * 2000,
        ended=(MAX_INT64,) * 4000,
        rolled=(flight,) * 4000,
        waits=tuple(
            Wait(
                "x" * 249,
                True,
                ((Key(MAX_INT64, MAX_INT64), END),)
                * (1 + (number < MAX_EXTRA_KEY_RANGES) * -(-MAX_EXTRA_KEY_RANGES // waits)),
            )
            for number in range(waits)
        ),
    )
    room = journal_bytes(max_poll_records=2000, max_due_records=4000, most_waits=waits)
    assert 1_500_000 < len(most.to_bytes()) < room < 8 << 20, "as a journal is made"


def test_a_journal_without_that_room_is_refused_with_what_to_set() -> None:
    made = journal_topic(DAY_MS, 2_000_000)
    assert journal_faults("timer.journal", made, DAY_MS, 2_000_000) == []
    (fault,) = journal_faults("timer.journal", {**made, "max.message.bytes": "1048588"}, DAY_MS, 2_000_000)
    assert "max.message.bytes is 1048588" in fault
    assert "2000000 bytes: set it to that or more" in fault


def test_a_right_that_is_missing_is_named() -> None:
    assert missing_right("t", frozenset({"READ", "WRITE"}), frozenset({"READ", "WRITE", "DESCRIBE"})) is None
    told = missing_right("t", frozenset({"READ", "WRITE"}), frozenset({"DESCRIBE"}))
    assert told == "t: the bridge's user may not READ and WRITE: give it the right (an ACL)"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("cleanup.policy", "compact", "cleanup.policy is compact: set it to delete"),
        ("message.timestamp.type", "CreateTime", "message.timestamp.type is CreateTime: set it to LogAppendTime"),
        ("retention.bytes", "5", "retention.bytes is 5: set it to -1"),
        ("retention.ms", "5", "retention.ms"),
    ],
)
def test_a_timer_topic_that_would_lose_timers_is_told_with_what_to_set(name: str, value: str, told: str) -> None:
    made = timer_topic(DAY_MS)
    assert faults("t", made, DAY_MS, "here:9092") == []
    (fault,) = faults("t", {**made, name: value}, DAY_MS, "here:9092")
    assert fault.startswith("t: ")
    assert told in fault


def test_a_rejected_topic_has_room_for_the_largest_request_and_its_reason() -> None:
    assert rejected_faults("r", {"max.message.bytes": str(1000 + REASON_BYTES)}, 1000) == []
    (fault,) = rejected_faults("r", {"max.message.bytes": str(999 + REASON_BYTES)}, 1000)
    assert f"set it to {1000 + REASON_BYTES}" in fault
    assert rejected_faults("r", rejected_topic(1000), 1000) == []


def test_a_timer_topic_that_may_be_compressed_is_told_with_the_command_that_fixes_it() -> None:
    made = {**timer_topic(DAY_MS), "compression.type": "producer"}
    (fault,) = faults("orders.timers", made, DAY_MS, "here:9092")
    assert fault.startswith("orders.timers: compression.type is producer, so a record of 3 KB may become 100 MB")
    assert "start once with --fix-topics true" in fault
    assert (
        "kafka-configs.sh --bootstrap-server here:9092 --alter --entity-type topics --entity-name orders.timers"
        " --add-config compression.type=uncompressed" in fault
    )
    assert "compressed_requests = allow" in fault
    assert faults("orders.timers", made, DAY_MS, None) == [], "the operator allows it"
    assert journal_faults("j", {**made, "max.message.bytes": "2000000"}, DAY_MS, 2_000_000) == []


def test_what_a_reader_holds_is_bounded_by_what_the_topics_take_and_a_batch_always_fits() -> None:
    usual = fetch_limits(1 << 20, is_compressed=False)
    assert usual == {"fetch.max.bytes": str(16 << 20), "receive.message.max.bytes": str(17 << 20)}
    large = fetch_limits(10 << 20, is_compressed=True)
    assert large == {
        "fetch.max.bytes": str(40 << 20),
        "receive.message.max.bytes": str(41 << 20),
        "max.partition.fetch.bytes": "1",
    }
