"""Histories on the topics -> exactly one class for each request, and no fault that hides."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_timer import headers as names
from kafka_timer.murmur2 import partition_of
from schemas.tables import AuditClass
from spark_jobs.audit_rules.evidence import PartitionCount
from spark_jobs.audit_rules.verdicts import RULES
from spark_jobs.kafka.admin import Span
from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, Record, delivery, rejection, request

pytestmark = pytest.mark.spark


@one_run()
def test_requests_of_every_good_kind_beside_one_that_came_and_was_rejected() -> Judging:
    plain = request(0)
    delayed = request(1, due_ms=None, also=((names.DELAY_MS, b"250"),))
    other_key = request(2, also=((names.KEY, b"other"), (names.PARTITION, b"3")))
    tombstone = request(3, key=None, value=None, foreign=())
    odd = request(4, value=b"", foreign=(("x", None), ("x", b"\xff"), ("x", b"")))
    past = request(5, due_ms=0)
    bad = request(6, due_ms=None, also=((names.DELAY_MS, b"-5"),))
    future, both = request(7, due_ms=AS_OF_MS + 1), request(8)
    came = [
        delivery(plain),
        delivery(delayed, due_ms=1_250),
        delivery(other_key, key=b"other", partition=3),
        delivery(tombstone, key=None, value=None),
        delivery(odd, value=b""),
        delivery(past, at_ms=1_002),
        delivery(both),
    ]
    asked = [plain, delayed, other_key, tombstone, odd, past, bad, future, both]
    found = (yield History(asked, came, [rejection(bad), rejection(both)])).by_class
    assert found.pop("rejected-but-delivered") == "8"
    assert found == {"delivered": "0 1 2 3 4 5", "rejected": "6", "pending": "7"}


DIFFERENCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("key", {}, {"key": b"other"}),
    ("key", {}, {"key": None}),
    ("key", {"also": ((names.KEY, b"other"),)}, {}),
    ("value", {"value": None}, {"value": b""}),
    ("value", {"value": b""}, {"value": None}),
    ("headers", {}, {"foreign": ()}),
    ("headers", {}, {"foreign": (("tenant", b"b"),)}),
    ("headers", {}, {"foreign": (("tenant", b"a"), ("tenant", b"a"))}),
    ("headers", {"foreign": (("x", b"1"), ("x", b"2"))}, {"foreign": (("x", b"2"), ("x", b"1"))}),
    ("headers", {}, {"also": (("extra", b""),)}),
    ("headers", {"foreign": ((names.ERROR, b"the sender's own"),)}, {"foreign": ()}),
    ("topic", {"target": "bills"}, {}),
    ("partition", {"also": ((names.PARTITION, b"3"),)}, {"partition": 2}),
    ("timer-deliver-ms", {}, {"due_ms": 4_999, "at_ms": 5_003}),
    ("control-headers", {}, {"also": ((names.TOPIC, b"orders"),)}),
]


@one_run()
def test_whatever_differs_is_named() -> Judging:
    history = History([request(n, **asked) for n, (_, asked, _) in enumerate(DIFFERENCES)])
    for asked, (_, _, got) in zip(history.requests, DIFFERENCES, strict=True):
        history.deliveries.append(delivery(asked, **{"value": asked.value, **got}))
    found = (yield history).rows
    assert [(row["class"], *row.altered) for row in found] == [("altered", part) for part, _, _ in DIFFERENCES]


@one_run()
def test_a_key_chooses_the_partition_unless_the_request_names_one() -> Judging:
    """No partition is known for a record without a key, nor while a producer may not know all partitions."""
    right, wrong = partition_of(b"key", 4), 3 - partition_of(b"key", 4)
    plain, elsewhere, named, keyless, early = (request(n, target="keyed") for n in range(5))
    named = named._replace(headers=(*named.headers, (names.PARTITION, b"%d" % wrong)))
    came = [delivery(plain, topic="keyed", partition=right)]
    came += [delivery(each, topic="keyed", partition=wrong) for each in (elsewhere, named)]
    came.append(delivery(keyless, topic="keyed", partition=wrong, key=None))
    came.append(delivery(early, topic="keyed", partition=wrong, at_ms=5_000))
    asked = [plain, elsewhere, named, keyless._replace(key=None), early]
    counts = {PartitionCount("keyed", 4, since_ms=5_000), PartitionCount("large", 4, since_ms=5_000, every=16)}
    asked += [request(n, target="large") for n in (16, 17)]
    came += [delivery(each, topic="large", partition=wrong) for each in asked[-2:]]
    found = yield History(asked, came, counts=counts)
    assert found.by_class == {"delivered": "0 2 3 4 17", "altered": "1 16"}
    assert {(*row.altered,) for row in found.rows} == {(), ("partition",)}


@one_run()
def test_a_trace_id_shows_what_an_origin_does_not() -> Judging:
    """Delivered without origin, twice; under the origin of another request. Records of other senders are no fault."""

    def traced(offset: int, id_: bytes) -> Record:
        return request(offset, foreign=((names.TRACE_ID, id_),))

    came, unstamped, again, mixed_up, lost = (traced(n, b"%d" % n) for n in range(5))
    retried = traced(5, b"0")
    bare = [Record("orders", 0, 70 + n, 6_000, "LogAppendTime", b"key", b"value", came.headers[2:]) for n in range(4)]
    asked = [came, unstamped, again, mixed_up, lost, retried]
    history = History(asked, [delivery(each) for each in (came, again, retried)])
    history.deliveries += [
        bare[0]._replace(headers=unstamped.headers[2:]),
        bare[1]._replace(headers=again.headers[2:]),
        bare[2]._replace(headers=again.headers[2:]),
        bare[3]._replace(headers=((names.TRACE_ID, b"of another sender"),)),
        *(bare[3]._replace(offset=80 + n, headers=each) for n, each in enumerate([(), ((names.TOPIC, b"orders"),)])),
        delivery(mixed_up, foreign=lost.headers[2:]),
    ]
    found = yield history
    told = [(row.offset, row["class"], row.deliveries, row.delivered_offset) for row in found.rows]
    assert sorted(told, key=str) == [
        (0, "delivered", 1, 0),
        (1, "missing", 0, None),
        (1, "unstamped", 1, 70),
        (2, "delivered", 1, 2),
        (2, "unstamped", 2, 71),
        (3, "wrong-origin", 1, 3),
        (4, "missing", 0, None),
        (5, "delivered", 1, 5),
    ]


@one_run()
def test_a_rejected_record_must_be_kept_as_it_was() -> Judging:
    """Also a sender's headers that look like the reasons: it may have sent a rejected record as it was."""
    own = ((names.ERROR, b"unknown-topic"), (names.ERROR_DETAIL, b"why"))
    asked = [request(0, due_ms=None), request(1), request(2, foreign=own), request(3, foreign=own)]
    returned = [rejection(asked[0]), rejection(asked[1], "unknown-topic", value=b"other")]
    returned.append(rejection(asked[2], "too-large"))
    returned.append(rejection(asked[3])._replace(headers=rejection(request(3, foreign=())).headers))
    assert [(row["class"], row.altered, row.error) for row in (yield History(asked, [], returned)).rows] == [
        ("rejected", None, "bad-header"),
        ("altered", ["value"], "unknown-topic"),
        ("rejected", [], "too-large"),
        ("altered", ["headers"], "bad-header"),
    ]


@one_run()
def test_records_after_an_open_transaction_are_pending() -> Judging:
    """Of one with an id, the next request came long after: it is not lost either. Nothing else is left open by it."""
    waits, named, lost = request(0), request(1, id=b"x"), request(2)
    wrong, late = request(3), request(4, id=b"x", at_ms=60_000, due_ms=AS_OF_MS + 1)
    asked = [waits, named, lost, wrong, late]
    found = yield History(asked, [delivery(wrong, value=b"other")], undecided=[waits, named, wrong])
    assert found.by_class == {"pending": "0 1 4", "missing": "2", "altered": "3"}
    assert [row.offset for row in found.rows if row.open] == [0, 1, 2, 4]


@one_run()
def test_a_record_too_large_for_the_rejected_topic_is_rejected() -> Judging:
    """Its reasons alone stand there, which say what is left at the origin; all else must be what was sent."""
    asked = [request(n) for n in range(7)]
    left = b"too large; too large for this topic, so key, value and headers are left at timer-origin"
    headers_left = b"1,025 headers; its headers are left at timer-origin"

    def told(of: Record, *kept: tuple[str, bytes], detail: bytes = left) -> Record:
        reasons = [(names.ERROR, b"too-large"), (names.ERROR_DETAIL, detail), (names.ORIGIN, of.origin.encode())]
        return rejection(of)._replace(key=None, value=None, headers=[*kept, *reasons])

    returned = [told(asked[0]), told(asked[1], ("tenant", b"a")), told(asked[2], detail=b"too large")]
    returned.append(told(asked[3])._replace(value=b"value"))
    returned.append(told(asked[4], detail=headers_left)._replace(key=b"key", value=b"value"))
    returned.append(told(asked[5], detail=headers_left)._replace(key=b"key", value=b"other"))
    returned.append(told(asked[6], ("tenant", b"b"), detail=headers_left)._replace(key=b"key", value=b"value"))
    found = (yield History(asked, [], returned)).rows
    assert [(row["class"], row.altered) for row in found] == [
        ("rejected", []),
        ("altered", ["value", "key"]),
        ("altered", ["value", "headers", "key"]),
        ("altered", ["key"]),
        ("rejected", []),
        ("altered", ["value"]),
        ("altered", ["headers"]),
    ]


@one_run()
def test_a_second_fault_is_listed_beside_the_first() -> Judging:
    asked, refused = request(0), request(1, due_ms=None)
    twice = [delivery(asked, at_ms=4_000), delivery(asked, offset=9, value=b"other")]
    history = History([asked, refused], twice, [rejection(refused), rejection(refused, offset=9)])
    first, second = (yield history).rows
    assert (first["class"], first.faults) == ("duplicate", ["duplicate", "early", "altered"])
    assert (first.deliveries, first.delivered_ms, first.lateness_ms) == (2, 4_000, -1_000)
    assert (second["class"], second.rejections) == ("duplicate", 2)


@one_run(**TIGHT)
def test_what_must_be_there_by_now() -> Judging:
    """With a margin of 10 ms; a request without a due time is expected on the rejected topic at once."""
    cases: list[tuple[int | None, int, str]] = [
        *((due_ms, 1_000, "pending") for due_ms in (AS_OF_MS + 1, AS_OF_MS, AS_OF_MS - 9)),
        (AS_OF_MS - 10, 1_000, "missing"),
        *((due_ms, AS_OF_MS - 9, "pending") for due_ms in (0, None)),
        *((due_ms, AS_OF_MS - 10, "missing") for due_ms in (0, None)),
    ]
    history = History([request(n, due_ms=due_ms, at_ms=at_ms) for n, (due_ms, at_ms, _) in enumerate(cases)])
    found = yield history
    assert found.classes == {str(n): name for n, (_, _, name) in enumerate(cases)}


@one_run()
def test_a_pause_is_no_timer() -> Judging:
    """Its time, id and other headers are not looked at; without a legal topic it has to be refused."""
    actions = [(b"pause", "orders"), (b"resume", "orders"), (b"pause", None), (b"pause", "orders")]
    switches = [
        request(n, due_ms=None, target=target, also=((names.ACTION, action),))
        for n, (action, target) in enumerate(actions, 1)
    ]
    history = History([request(0, id=b"x"), *switches], [delivery(request(0))])
    history.deliveries.append(delivery(switches[3], due_ms=1_000))
    found = yield history
    assert found.by_class == {"delivered": "0", "switch": "1 2", "missing": "3", "malformed-but-delivered": "4"}


MALFORMED: list[dict[str, Any]] = [
    {"due_ms": None},
    *({"due_ms": None, "also": ((names.DELAY_MS, value),)} for value in (b"+5", b"%d" % (2**63 - 1))),
    {"due_ms": None, "also": ((names.DELAY_LEVEL, b"one"),)},
    *(
        {"also": (header,)}
        for header in (
            *((names.DELAY_MS, b"5"), (names.DELIVER_MS, b"5000"), (names.DELAY_LEVEL, b"1"), (names.TOPIC, b"orders")),
            *((names.ACTION, action) for action in (b"Cancel", b"replace", b"cancel")),
            *((names.EXPIRE_MS, value) for value in (b"soon", b"5000")),
            *((names.PARTITION, value) for value in (b"-1", b"2147483648")),
            *((names.ID, None), (names.KEY, None), (names.PROFILE, b"rocketmq")),
            *((names.ORIGIN, b"timer.requests/0/0"), (names.ROLLS, b"1")),
        )
    ),
    *({"id": id_} for id_ in (b"", b"i" * 1025)),
    *({"target": target} for target in (None, "", "a b", "timer.receipts")),
    {"target": "__consumer_offsets", "due_ms": AS_OF_MS + 1},
]


@one_run()
def test_headers_that_must_be_rejected() -> Judging:
    """Nothing came of any of them."""
    found = yield History([request(n, **asked) for n, asked in enumerate(MALFORMED)])
    assert found.classes == {str(n): "missing" for n in range(len(MALFORMED))}


def test_origins_outside_the_range_are_not_judged(spark: SparkSession) -> None:
    origins = {
        "timer.requests/0/9": "before the range",
        "timer.requests/0/20": "after it",
        "other.timers/0/15": "another bridge's",
        "timer.requests/0/15": "unexplained",
        "timer.requests/1/15": "unexplained",
        "timer.requests/0/99999999999999999999": "unexplained",
        "nonsense": "unexplained",
    }
    deliveries = [delivery(request(), origin=origin, offset=n) for n, origin in enumerate(origins)]
    deliveries += [  # without an origin, but with headers that only a bridge writes
        delivery(request(), offset=place)._replace(headers=((name, b"0"),))
        for place, name in ((70, names.ROLLS), (71, names.RELEASED_MS))
    ]
    found = History([], deliveries).judged(spark, spans=[Span("timer.requests", 0, 10, 20)]).collect()
    assert {row.origin.removeprefix("timer.requests/0/"): row["class"] for row in found} == {
        "15": "unexplained",
        "timer.requests/1/15": "unexplained",
        "?74696D65722E72657175657374732F302F3939393939393939393939393939393939393939": "unexplained",
        "?6E6F6E73656E7365": "unexplained",
        "?orders/0/70": "unexplained",
        "?orders/0/71": "unexplained",
    }


def test_the_table_of_rules_has_each_class_once() -> None:
    assert [rule.name for rule in RULES] == list(AuditClass)
