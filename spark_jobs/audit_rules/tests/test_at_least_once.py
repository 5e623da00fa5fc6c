"""What the mode at-least-once excuses: what a crash may repeat, and nothing else."""

import pytest

from schemas import headers as names
from spark_jobs.tests.one_run import Judging, one_run
from spark_jobs.tests.records import History, cancel, delivery, receipt, rejection, request

pytestmark = pytest.mark.spark


@one_run(at_least_once=True)
def test_duplicates_are_counted_and_no_faults() -> Judging:
    """A crash repeats a delivery, or what is read after it ends a timer that was delivered."""
    twice, other, ended, late, gone = (request(n, id=b"x%d" % n) for n in range(5))
    expired, parked, refused = request(5, also=((names.EXPIRE_MS, b"5002"),)), request(6), request(9, due_ms=None)
    cancels = [cancel(b"x2", 7, at_ms=5_004), cancel(b"x3", 8, at_ms=3_000)]
    history = History(
        [twice, other, ended, late, gone, expired, parked, *cancels, refused],
        [
            *(delivery(twice), delivery(twice, offset=50)),
            *(delivery(other), delivery(other, offset=51, value=b"other")),
            *(delivery(ended), delivery(late), delivery(expired), delivery(parked)),
        ],
        [
            *(rejection(expired, "expired", at_ms=5_010), rejection(parked, "too-large", at_ms=5_010)),
            *(rejection(refused), rejection(refused, offset=60)),
        ],
        [receipt("cancelled", cancels[0], ended), receipt("cancelled", cancels[1], late)],
    )
    found = yield history
    assert found.classes == {
        "0": "delivered",
        "1": "altered",
        "2": "delivered",
        "3": "cancelled-but-delivered",
        "4": "missing",
        "5": "expired",
        "6": "rejected-but-delivered",
        "7": "cancel-done",
        "8": "cancel-done",
        "9": "duplicate",
    }
    assert found.rows[0].deliveries == 2
