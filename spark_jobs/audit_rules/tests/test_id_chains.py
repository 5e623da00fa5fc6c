"""Ids and cancels: what the timer topic, receipts and times prove of each request.

Settled at once, tolerance 1,000 ms, skew 1,000 ms.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, Record, cancel, delivery, receipt, rejection, request

pytestmark = pytest.mark.spark

X, Y = b"x", b"y"


class Story(NamedTuple):
    """What lies on the topics, and the classes of its requests by offset."""

    name: str
    requests: Sequence[Record]
    classes: Sequence[str]
    deliveries: Sequence[Record] = ()
    rejections: Sequence[Record] = ()
    receipts: Sequence[Record] = ()
    proofs: Sequence[str | None] | None = None


def timer(offset: int = 0, *, due_ms: int = 50_000, id: bytes = X, **other: Any) -> Record:  # noqa: A002
    return request(offset, due_ms=due_ms, id=id, **other)


def ended_in_time() -> list[Story]:
    a, b, c = timer(), timer(1, at_ms=3_000), cancel(X, 1)
    last, told = timer(2, at_ms=4_000, due_ms=AS_OF_MS + 1), [receipt("cancelled", c, a)]
    junk = [b"", b"{", b"[]", b'{"kind": 5}', b'{"kind": "cancelled"}', b"\xff\xfe", None]
    odd = [*(told[0]._replace(value=value) for value in junk), receipt("cancelled", cancel(X, 77), request(78))]
    done = ["cancelled", "cancel-done"]
    return [
        Story("cancelled", [a, c], done, proofs=["order", "order"]),
        Story("cancelled, told", [a, c], done, receipts=told, proofs=["receipt", "receipt"]),
        Story("invalid receipts are ignored", [a, c], done, receipts=odd, proofs=["order", "order"]),
        Story("replaced", [a, b], ["replaced", "delivered"], [delivery(b)], proofs=["order", None]),
        Story("replaced twice", [a, b, last], ["replaced", "replaced", "pending"]),
        Story("replaced, then cancelled", [a, b, cancel(X, 2, at_ms=4_000)], ["replaced", "cancelled", "cancel-done"]),
        Story("another id", [a, cancel(Y, 1)], ["missing", "cancel-not-found"]),
        Story("of another partition", [a, cancel(X, 1, partition=1)], ["missing", "cancel-not-found"]),
        Story("cancelled twice", [a, c, cancel(X, 2)], ["cancelled", "cancel-done", "cancel-not-found"]),
        Story("nothing there", [cancel(X, 0)], ["cancel-not-found"], proofs=["order"]),
        Story("a cancel comes first", [cancel(X, 0), b], ["cancel-not-found", "delivered"], [delivery(b)]),
        Story("in the very last moment", [timer(due_ms=1_500), c], done),
    ]


def bad_requests() -> list[Story]:
    """A bad request that names a live id changes nothing; what its target refuses later had ended what came before."""
    a = timer()
    stories = []
    for code, at_ms, ends in (
        *((code, 2_002, False) for code in ("too-far", "too-large", "bad-target")),
        *((code, 60_000, False) for code in ("denied-target", "denied-action", "quota-exceeded")),
        *((code, 60_000, True) for code in ("too-large", "bad-target", "unknown-topic")),
        ("not-authorized", 2_002, True),
    ):
        b = timer(1, at_ms=2_000, due_ms=10**15 if code == "too-far" else 60_000)
        after = ["replaced", "rejected"] if ends else ["delivered", "rejected"]
        came = [] if ends else [delivery(a)]
        stories.append(Story(f"{code} at {at_ms}", [a, b], after, came, [rejection(b, code, at_ms=at_ms)]))
    for code, ends in (("bad-target", False), ("too-large", True)):  # for a timer topic that the audit does not know
        at_once = timer(1, at_ms=20_000, due_ms=20_000, target="more.timers")
        after = ["replaced", "rejected"] if ends else ["delivered", "rejected"]
        came = [] if ends else [delivery(a)]
        stories.append(Story(f"{code} at once", [a, at_once], after, came, [rejection(at_once, code)]))
    for code in ("too-large", "bad-target"):  # read when it was overdue, as the bridge was down
        b, last = timer(1, at_ms=2_000, due_ms=20_000), timer(2, at_ms=3_000)
        told = [receipt("rejected", b), receipt("replaced", last, a), receipt("accepted", last, last)]
        back = [rejection(b, code, at_ms=30_000)]
        after = ["replaced", "rejected", "delivered"]
        stories.append(Story(f"{code}, told late", [a, b, last], after, [delivery(last)], back, told))
    denied, illegible = cancel(X, 1), request(1, id=X, due_ms=None)
    for refused, code in ((denied, "denied-action"), (illegible, "bad-header")):
        back = [rejection(refused, code)]
        stories.append(Story(f"refused: {code}", [a, refused], ["delivered", "rejected"], [delivery(a)], back))
    waiting = request(1, id=X, due_ms=None, at_ms=AS_OF_MS)
    stories.append(Story("illegible, not refused", [a, waiting], ["delivered", "missing"], [delivery(a)]))
    gone = timer(due_ms=AS_OF_MS + 9)
    stories.append(Story("illegible cancel", [gone, cancel(b"", 1)], ["pending", "missing"]))
    return stories


def too_late() -> list[Story]:
    a = timer(due_ms=5_000)
    came = [delivery(a, at_ms=5_003)]
    soon, later = cancel(X, 1, at_ms=4_900), cancel(X, 1, at_ms=60_000)
    late, back = ["delivered", "cancel-too-late"], [rejection(a, "unknown-topic", at_ms=5_003)]
    # By the clock of a bridge, which is behind, on a topic with senders' times: it does not say when it was read.
    behind, older = ([receipt("too-late", each, at_ms=3_000)] for each in (later, cancel(X, 1, at_ms=12_000)))
    b, b_late = timer(due_ms=11_000), cancel(X, 1, at_ms=12_000)
    ignored = ["cancelled-but-delivered", "cancel-too-late"]
    return [
        Story("crossed on the way", [a, soon], late, came),
        Story("long after", [a, later], late, came),
        Story("told", [a, later], late, came, (), [receipt("too-late", later)]),
        Story("told by a bridge whose clock is behind", [a, later], late, came, (), behind),
        Story("told so, and left 1 s later", [b, b_late], late, [delivery(b, at_ms=13_000)], (), older),
        Story("told so, and left 2 s later", [b, b_late], ignored, [delivery(b, at_ms=14_000)], (), older),
        Story("told otherwise", [a, later], ["delivered", "cancel-not-found"], came, (), [receipt("not-found", later)]),
        Story("behind a rejected one", [a, later], ["rejected", "cancel-too-late"], (), back),
        Story("sent anew", [a, timer(1, at_ms=60_000, due_ms=61_000)], ["delivered", "missing"], came),
    ]


def ignored() -> list[Story]:
    """Delivered though it was ended. What is read late is no fault, where a receipt shows it."""
    a, quick = timer(due_ms=5_000), cancel(X, 1, at_ms=4_990)
    c, b = cancel(X, 1), timer(1, at_ms=2_000)
    came, late = [delivery(a)], [delivery(a, at_ms=9_000)]
    bad = "cancelled-but-delivered"
    return [
        Story("by time", [a, c], [bad, "cancel-too-late"], came),
        Story("by time, replaced", [a, b], [bad, "delivered"], [*came, delivery(b)]),
        Story("by its receipt", [a, quick], [bad, "cancel-done"], came, (), [receipt("cancelled", quick, a)]),
        Story("by a receipt of one not in sight", [a], [bad], came, (), [receipt("cancelled", cancel(X, 900), a)]),
        Story("read before", [a, quick], [bad, "cancel-not-found"], late, (), [receipt("not-found", quick)]),
        Story("read late", [a, c], ["delivered", "cancel-too-late"], came, (), [receipt("too-late", c, at_ms=5_004)]),
    ]


def lost() -> list[Story]:
    """Gone before what should have ended it came: no cancel may hide a loss."""
    a, c, late = timer(due_ms=5_000), cancel(X, 1), cancel(X, 1, at_ms=60_000)
    again = timer(1, at_ms=60_000, due_ms=61_000)
    pending, other = timer(due_ms=AS_OF_MS + 9), cancel(Y, 1)
    accepted, falsely = [receipt("accepted", again, again)], [receipt("cancelled", other, a)]
    both_told = [receipt("not-found", c), receipt("cancelled", cancel(X, 2), a)]
    return [
        Story("not found", [a, c], ["missing", "cancel-not-found"], (), (), [receipt("not-found", c)]),
        Story("not found, not due", [pending, c], ["missing", "cancel-not-found"], (), (), [receipt("not-found", c)]),
        Story("long overdue", [a, late], ["missing", "cancel-not-found"]),
        Story("long overdue, told", [a, late], ["cancelled", "cancel-done"], (), (), [receipt("cancelled", late, a)]),
        Story("overdue, sent anew", [a, again], ["missing", "delivered"], [delivery(again)]),
        Story("replaced nothing", [pending, again], ["missing", "delivered"], [delivery(again)], (), accepted),
        Story("another's receipt ends nothing", [a, other], ["missing", "cancel-done"], (), (), falsely),
        Story("not found, with a false receipt", [a, c], ["missing", "cancel-not-found"], (), (), both_told),
    ]


def false_receipts() -> list[Story]:
    """A receipt that names another ender than the next request, or a timer that cannot have been ended."""
    waits, c, again = timer(due_ms=AS_OF_MS + 9), cancel(X, 1), cancel(X, 2)
    overdue, late, b = timer(due_ms=5_000), cancel(X, 1, at_ms=60_000), timer(1, at_ms=3_000)
    unnamed, bad = request(0, due_ms=AS_OF_MS + 9), "false-receipt"
    done, back = ["cancel-done", "cancel-done"], [rejection(overdue, "unknown-topic", at_ms=5_003)]
    unexcused, told = ["missing", "cancel-not-found", "cancel-done"], [receipt("cancelled", again, overdue)]
    return [
        Story("wrong ender", [waits, c, again], [bad, *done], (), (), [receipt("cancelled", again, waits)]),
        Story("absent ender", [waits, c], [bad, "cancel-done"], (), (), [receipt("cancelled", again, waits)]),
        Story("wrong kind", [waits, b], ["missing", "delivered"], [delivery(b)], (), [receipt("cancelled", b, waits)]),
        Story("without id", [unnamed, c], [bad, "cancel-done"], (), (), [receipt("cancelled", c, unnamed)]),
        Story("rejected too", [overdue, late], [bad, "cancel-done"], (), back, [receipt("cancelled", late, overdue)]),
        Story("does not excuse", [overdue, late, again], unexcused, (), (), told),
    ]


def rocketmq_cancels() -> list[Story]:
    """`topic+id` ends the timer with that id only if it waits for that topic, or the one with the whole text as id."""

    def ends(name: bytes, offset: int = 1) -> Record:
        return cancel(None, offset)._replace(headers=[("TIMER_DEL_UNIQKEY", name)])

    a, elsewhere, whole = timer(), timer(target="bills"), timer(id=b"orders+x")
    asked = ends(b"orders+x")
    both = [a, timer(1, id=b"orders+x"), ends(b"orders+x", 2)]
    later = [elsewhere, ends(b"orders+x"), timer(2, at_ms=3_000), ends(b"orders+x", 3)._replace(timestamp_ms=4_000)]
    ended = ["cancelled", "cancel-done"]
    return [
        Story("by id", [a, ends(X)], ended),
        Story("by topic and id", [a, ends(b"orders+x")], ended),
        Story("told", [a, asked], ended, receipts=[receipt("cancelled", asked, a)], proofs=["receipt"] * 2),
        Story("for another topic", [elsewhere, ends(b"orders+x")], ["missing", "cancel-not-found"]),
        Story("the whole text", [whole, ends(b"orders+x")], ended),
        Story("the whole text first", both, ["delivered", *ended], [delivery(a)]),
        Story("ignored", [a, ends(b"orders+x")], ["cancelled-but-delivered", "cancel-too-late"], [delivery(a)]),
        Story("after one for another topic", later, ["replaced", "cancel-not-found", *ended]),
    ]


@one_run()
def test_classes_of_ids() -> Judging:
    stories = [*ended_in_time(), *bad_requests(), *too_late(), *ignored(), *lost(), *false_receipts()]
    stories += rocketmq_cancels()
    lists = [(list(s.requests), list(s.deliveries), list(s.rejections), list(s.receipts)) for s in stories]
    told = yield [History(*each) for each in lists]
    found = [part.rows for part in told.parts]
    classes = [(story.name, [row["class"] for row in rows]) for story, rows in zip(stories, found, strict=True)]
    assert classes == [(story.name, list(story.classes)) for story in stories]
    for story, rows in zip(stories, found, strict=True):
        if story.proofs is not None:
            assert (story.name, [row["proof"] for row in rows]) == (story.name, list(story.proofs))


@one_run(**TIGHT)
def test_a_timer_that_is_not_settled_is_pending() -> Judging:
    a, b = timer(due_ms=AS_OF_MS - 20), timer(5, id=Y, due_ms=AS_OF_MS - 20)
    found = yield History([a, cancel(X, 1, at_ms=AS_OF_MS - 5), b, cancel(Y, 6, at_ms=AS_OF_MS - 10)])
    assert found.by_class == {"pending": "0 1", "cancelled": "5", "cancel-done": "6"}
