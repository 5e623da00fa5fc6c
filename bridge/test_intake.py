"""What becomes of each request, and what leaves: decided without a broker."""

from bridge.delivery import deliver, park, refuse
from bridge.intake import intake, replay
from bridge.ports import Record
from schemas.headers import Headers, Refusal, Rules
from schemas.origin import Shard
from schemas.progress import NOTHING_SETTLED, Key
from timer.batch import Batch
from timer.record import Body

SHARD = Shard("timer.requests", 2)
RULES = Rules(max_delay_ms=10_000, roll_window_ms=10_000)


def request(
    offset: int = 0, due_ms: int = 1500, *, timestamp_ms: int = 1000, extra: Headers = (), value: bytes | None = b"v"
) -> Record:
    headers = [("timer-topic", b"orders"), ("timer-deliver-ms", b"%d" % due_ms), *extra]
    return Record(offset, timestamp_ms, b"k", value, headers)


def placed(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.visits_ms, batch.origins, strict=True))


def test_a_request_takes_its_place_by_due_time_then_offset() -> None:
    taken = intake([request(0, 1500), request(1, 1400)], NOTHING_SETTLED, 1000, RULES)
    assert placed(taken.batch) == [(1500, 0), (1400, 1)]


def test_one_that_is_overdue_when_sent_takes_its_place_by_its_timestamp() -> None:
    taken = intake([request(0, 3, timestamp_ms=1000)], NOTHING_SETTLED, 2000, RULES)
    assert placed(taken.batch) == [(1000, 0)]


def test_one_whose_place_has_passed_leaves_at_once_when_due_and_is_held_until_then() -> None:
    settled = Key(1500, 5)
    taken = intake([request(n, due) for n, due in ((6, 1500), (4, 1500), (7, 1499))], settled, 1499, RULES)
    assert placed(taken.batch) == [(1500, 6), (1500, 4)]
    assert (taken.held, taken.batch.held) == ([4], [1])
    assert [body.offset for body in taken.late] == [7]


def test_a_bad_one_changes_nothing_for_the_others() -> None:
    bad = request(1, extra=[("timer-key", None)])
    taken = intake([request(0), bad, request(2)], NOTHING_SETTLED, 1000, RULES)
    assert placed(taken.batch) == [(1500, 0), (1500, 2)]
    assert [(record.offset, refusal.code) for record, refusal in taken.refused] == [(1, "bad-header")]


def test_a_replay_keeps_what_lives_by_rule_and_journal() -> None:
    records = [request(n, 1500 + n) for n in range(5)]
    batch = replay(records, Key(1502, 2), lambda _: RULES, refused={4}, held={1})
    assert placed(batch) == [(1501, 1), (1503, 3)]
    assert batch.held == [0]


def test_a_delivery_is_the_request_without_our_headers_and_with_its_origin() -> None:
    foreign: Headers = [("trace", b"1"), ("trace", b"1"), ("none", None)]
    (body,) = bodies(request(7, extra=[*foreign, ("timer-key", b"other"), ("timer-partition", b"3")], value=None))
    assert deliver(SHARD, body, 1600) == (
        "orders",
        3,
        b"other",
        None,
        [
            *foreign,
            ("timer-origin", b"timer.requests/2/7"),
            ("timer-deliver-ms", b"1500"),
            ("timer-released-ms", b"1600"),
            ("timer-rolls", b"0"),
        ],
        1600,
    )


def test_case_31_an_empty_value_is_not_a_null_one() -> None:
    (body,) = bodies(request(value=b""))
    assert deliver(SHARD, body, 1600).value == b""


def test_what_is_rejected_is_kept_whole_with_the_reason_behind_it() -> None:
    record = request(7, extra=[("timer-key", b"other"), ("trace", b"1")])
    refusal = Refusal("unknown-topic", "because")
    (body,) = bodies(record)
    refused = refuse("timer.rejected", SHARD, record, refusal, 1600)
    assert park("timer.rejected", SHARD, body, refusal, 1600) == refused
    assert refused == (
        "timer.rejected",
        -1,
        b"k",
        b"v",
        [
            *record.headers,
            ("timer-error", b"unknown-topic"),
            ("timer-error-detail", b"because"),
            ("timer-origin", b"timer.requests/2/7"),
        ],
        1600,
    )


def bodies(*records: Record) -> list[Body]:
    """The bodies of requests that are due and late, which is the shortest way to one."""
    return intake(records, Key(9999, 9), 9999, RULES).late
