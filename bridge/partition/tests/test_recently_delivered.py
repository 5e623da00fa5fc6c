"""Ids whose timer was delivered within the last hour."""

import pytest

from bridge.partition import ids as lately
from bridge.partition.ids import RecentlyDelivered
from timer.index.due_counts import HOUR_MS


def test_an_id_is_known_for_an_hour_after_its_last_delivery() -> None:
    known = RecentlyDelivered()
    known.add([b"a", b"b"], 1000)
    known.add([b"a"], 2000)
    assert known.has(b"b", 1000 + HOUR_MS)
    assert not known.has(b"b", 1001 + HOUR_MS)
    assert known.has(b"a", 2000 + HOUR_MS)
    assert not known.has(b"c", 1000)


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lately, "_MOST", 2)
    known = RecentlyDelivered()
    known.add([b"a", b"b"], 1)
    known.add([b"a", b"c"], 2)
    assert [known.has(id_, 2) for id_ in (b"a", b"b", b"c")] == [True, False, True]
