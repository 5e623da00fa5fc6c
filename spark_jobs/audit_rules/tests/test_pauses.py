"""Timers of a paused target topic: held, and no fault, if it was paused before they were due."""

import pytest

from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, Record, cancel, delivery, pause, request

pytestmark = pytest.mark.spark


@one_run(**TIGHT)
def test_timers_of_a_paused_topic_are_held() -> Judging:
    """`shirts` is paused at 4,000 and again at 6,000, and its key is deleted later. The tolerance is 1,000 ms."""

    def shirts(offset: int, *, due_ms: int | None = 5_000, id: bytes | None = None) -> Record:  # noqa: A002
        return request(offset, target="shirts", due_ms=due_ms, id=id)

    before, within, later = (shirts(n, due_ms=due_ms) for n, due_ms in enumerate((2_999, 3_000, 20_000)))
    came, future, bad = shirts(3), shirts(4, due_ms=AS_OF_MS + 1), shirts(5, due_ms=None)
    waits, ended = shirts(6, id=b"x"), cancel(b"x", 7, at_ms=50_000)
    resumed, just_now = (request(n, target=target, due_ms=6_000) for n, target in ((8, "bills"), (9, "mails")))
    elsewhere = request(12, target="other", due_ms=6_000)
    lost, late = shirts(10, id=b"y", due_ms=2_000), cancel(b"y", 11, at_ms=50_000)
    asked = [before, within, later, came, future, bad, waits, ended, resumed, just_now, lost, late, elsewhere]
    history = History(asked, [delivery(came, topic="shirts")])
    history.control = [
        *(pause("shirts", 0, 1_000), pause("shirts", 1, 2_000, on=False)),
        *(pause("shirts", 2, 4_000), pause("shirts", 3, 6_000), pause("shirts", 4, 7_000, on=None)),
        *(pause("bills", 5, 4_000), pause("bills", 6, 9_000, on=False)),
        *(pause("mails", 7, 4_000), pause("mails", 8, AS_OF_MS - 9, on=False)),
        pause("other", 9, 1_000, timers="timer.more"),
        Record("timer.control", 0, 10, 1_000, "LogAppendTime", b"skip/timer.requests/0/9", b'{"v":1,"on":true}', ()),
    ]
    found = yield history
    assert found.by_class == {
        "missing": "0 5 8 10 12",
        "held": "1 2 9",
        "delivered": "3",
        "pending": "4",
        "cancelled": "6",
        "cancel-not-found": "7 11",
    }
    assert {row.offset for row in found.rows if row.open} == {0, 1, 2, 4, 5, 8, 9, 10, 12}
