"""Ids whose timer was delivered within the last hour, and partitions in which another client may have put a timer.

integration_tests/bridge/test_client.py proves the rules of placement.
"""

import pytest

from bridge.partition import names
from bridge.partition.names import RecentlyDelivered, is_by_crc32, other_place
from timer.index.due_counts import HOUR_MS

# Of order-1 in 4 partitions; a real broker and librdkafka agree with both.
BY_MURMUR2, BY_CRC32 = 2, 3


@pytest.mark.parametrize("partition", range(4))
def test_a_hint_is_given_where_a_client_looks_by_its_own_rule(partition: int) -> None:
    hint = other_place(b"order-1", partition, 4)
    if partition not in (BY_MURMUR2, BY_CRC32):
        assert hint is None
    else:
        assert f"to partition {BY_MURMUR2} by murmur2" in (hint or "")
        assert f"to {BY_CRC32} by CRC32" in (hint or "")
    assert is_by_crc32(b"order-1", partition, 4) == (partition == BY_CRC32)


def test_no_hint_where_the_rules_agree_or_the_id_is_long() -> None:
    assert other_place(b"order-1", 0, 1) is None
    for partition in range(4):
        assert other_place(b"x" * 65, partition, 4) is None
        assert not is_by_crc32(b"x" * 65, partition, 4)


def test_the_newest_ids_are_known_for_an_hour_after_their_last_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    known = RecentlyDelivered()
    known.add([b"a", b"b"], 1000)
    known.add([b"a"], 2000)
    assert known.has(b"b", 1000 + HOUR_MS)
    assert not known.has(b"b", 1001 + HOUR_MS)
    assert known.has(b"a", 2000 + HOUR_MS)
    assert not known.has(b"c", 1000)
    monkeypatch.setattr(names, "MOST_IDS", 2)
    known.add([b"a", b"c"], 2000)
    assert [known.has(id_, 2000) for id_ in (b"a", b"b", b"c")] == [True, False, True]
