"""Rows of a file become requests as a bridge will read them, or are rejected with a reason that helps."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kafka_timer.headers import EXPIRE_MS, ID, KEY, TOPIC
from schemas.profiles import as_stored
from spark_jobs.importer.rows import EXPORTED, ColumnMapping, ImportedRequest, InvalidRowError

NOW_MS = 1_700_000_000_000
COLUMNS = {"due": "when", "value": "body", "key": "who", "id": "id", "headers": "extra", "header:tenant": "tenant"}
MAPPED = ColumnMapping(COLUMNS, {"topic": "orders"}, 86_400_000)


def row(**other: Any) -> dict[str, Any]:
    return {"when": NOW_MS + 5_000, "body": "v", "who": None, "id": None, "extra": None, "tenant": "a", **other}


OURS = [("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000000009"), ("timer-id", b"x")]


def moved(headers: Sequence[tuple[str, bytes | None]], **other: Any) -> ImportedRequest:
    """A row of an export, as a request for another cluster."""
    exported = {
        "topic": "timers",
        "partition": 2,
        "origin_offset": 7,
        "target": "orders",
        "target_partition": None,
        "due_ms": NOW_MS + 9,
        "id": b"x",
        "key": b"k",
        "value": None,
        "headers": [{"name": name, "value": value} for name, value in headers],
    }
    return ColumnMapping({}, {}, 86_400_000).request(exported | other, NOW_MS)


@pytest.mark.parametrize(
    "when",
    [
        NOW_MS + 1,
        str(NOW_MS + 1),
        *(f"2023-11-14T22:13:20.{fraction}Z" for fraction in ("0001", "0000009", "0010000", "0000000000001")),
        datetime.fromtimestamp(NOW_MS / 1000 + 0.0004, UTC),
    ],
)
def test_times_are_never_early(when: object) -> None:
    assert dict(MAPPED.request(row(when=when), NOW_MS).headers)["timer-deliver-ms"] == b"%d" % (NOW_MS + 1)


@pytest.mark.parametrize("when", ["2023-11-14T23:13:20", datetime(2023, 11, 14, 23, 13, 20)])  # noqa: DTZ001
def test_a_time_without_a_zone_is_read_by_the_zone_that_is_given(when: object) -> None:
    mapped = replace(MAPPED, zone="Europe/Berlin")
    assert dict(mapped.request(row(when=when), NOW_MS).headers)["timer-deliver-ms"] == b"%d" % NOW_MS
    for changed in ("2026-10-25T02:30:00", "2026-03-29T02:30:00"):
        with pytest.raises(InvalidRowError, match="the clock of Europe/Berlin shows it never, or twice"):
            mapped.request(row(when=changed), NOW_MS)


def test_all_fields() -> None:
    found = MAPPED.request(row(who=7, id="x", extra='{"b": null, "c": "d"}', body=None), NOW_MS)
    assert (found.key, found.value) == (b"7", None)
    ours = [("timer-topic", b"orders"), ("timer-deliver-ms", b"1700000005000"), ("timer-id", b"x")]
    assert found.headers == [*ours, ("b", None), ("c", b"d"), ("tenant", b"a")]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"when": None}, "due is None: give epoch ms"),
        ({"when": "2026-12-24T18:00:00"}, "give its time zone"),
        ({"when": datetime(2026, 12, 24, 18)}, "give its time zone"),  # noqa: DTZ001
        ({"when": "2026-12-24"}, "give epoch ms, or"),
        ({"when": -5}, "due is -5"),
        ({"when": NOW_MS + 86_400_001}, "too-far"),
        ({"when": "9" * 5_000}, "due is '9"),
        ({"when": "9999-12-31T23:59:59.9999999Z"}, "too-far"),
        ({"id": ""}, "bad-header: timer-id"),
        ({"extra": "{"}, "headers are broken: not a JSON object"),
        ({"extra": "[" * 9_000}, "headers are broken: not a JSON object"),
        ({"extra": '{"a": Infinity}'}, "headers are broken: not a JSON object"),
        ({"extra": '{"a": 1, "a": 2}'}, "headers are broken: 'a' is there twice: give it once"),
        ({"body": {"a": float("inf")}}, "has no JSON form: .*: give it as text"),
        ({"body": {"a": b"x"}}, "has no JSON form: .*: give it as text"),
        ({"extra": '{"a\\u0000b": "x"}'}, "has a NUL, where Kafka clients cut its name: leave the NUL out"),
        ({"extra": ["ab"]}, "headers are not an object"),
        ({"extra": [(b"a", "x")]}, "headers are not an object"),
        ({"extra": '{"timer-topic": "x"}'}, "timer-topic is the bridge's own"),
    ],
)
def test_an_invalid_row_is_rejected_with_the_reason(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRowError, match=told):
        MAPPED.request(row(**wrong), NOW_MS)
    with pytest.raises(InvalidRowError, match="missing-topic"):
        ColumnMapping(COLUMNS, {}, 1).request(row(when=NOW_MS), NOW_MS)


def test_headers_of_a_map_are_all_sent_if_a_name_is_there_twice() -> None:
    twice = [("a", b"1"), ("a", b"2")]
    assert MAPPED.request(row(extra=twice), NOW_MS).headers[2:4] == twice


def test_an_export_needs_no_mapping_and_leaves_other_spellings_behind() -> None:
    sent = as_stored([("DELAY", b"3"), ("REAL_TOPIC", b"orders"), ("tenant", b"a"), ("tenant", None)], "rocketmq")
    found = moved(sent, target_partition=3)
    foreign = [("tenant", b"a"), ("tenant", None), ("imported-from", b"timers/2/7")]
    assert found == (b"k", None, [*OURS, ("timer-partition", b"3"), *foreign])


def test_an_export_keeps_headers_that_its_bridge_has_passed_on() -> None:
    assert ("timer-tenant", b"a") in moved([*OURS[:2], ("timer-tenant", b"a")]).headers
    with pytest.raises(InvalidRowError, match="timer-tenant"):
        MAPPED.request(row(extra=[("timer-tenant", b"a")]), NOW_MS)


def test_what_an_export_says_itself_is_refused() -> None:
    exported: dict[str, Any] = dict.fromkeys(EXPORTED)
    with pytest.raises(InvalidRowError, match="leave --set out"):
        ColumnMapping({}, {"topic": "orders"}, 86_400_000).request(exported, NOW_MS)


def test_a_paused_timer_of_an_export_is_not_imported() -> None:
    with pytest.raises(InvalidRowError, match="the timer is paused, and an import would deliver it"):
        moved([(TOPIC, b"orders"), (ID, b"x")], is_paused=True)


def test_an_export_keeps_the_expiry() -> None:
    expiry = (EXPIRE_MS, b"%d" % (NOW_MS + 10))
    found = moved([(TOPIC, b"orders"), ("timer-delay-ms", b"9"), expiry, (ID, b"x")])
    assert found.headers == [*OURS, expiry, ("imported-from", b"timers/2/7")]


@pytest.mark.parametrize(("key", "delivered"), [((), None), ((("scheduler-target-key", b"t"),), b"t")])
def test_an_export_keeps_the_delivered_key_where_another_spelling_has_the_id_in_the_record_s(
    key: tuple[tuple[str, bytes], ...], delivered: bytes | None
) -> None:
    """etf1: key = id; without a header for the target's key it is delivered with none."""
    spelled = [("scheduler-target-topic", b"orders"), ("scheduler-epoch", b"1"), *key]
    found = moved(as_stored(spelled, "etf1"), id=b"k")
    assert dict(found.headers).get(KEY, found.key) == delivered
    assert dict(found.headers)[ID] == b"k"


def test_an_exported_recurring_timer_goes_on_with_what_is_left_of_its_rule() -> None:
    rule = [("timer-every-ms", b"1000"), ("timer-count", b"5")]
    written = [("timer-occurrence", b"3"), ("timer-origin", b"timers/2/7"), ("timer-rolls", b"2")]
    found = moved([(TOPIC, b"orders"), *rule, ("tenant", b"a"), ("timer-deliver-ms", b"1"), *written])
    left = [("timer-every-ms", b"1000"), ("timer-count", b"3")]
    assert found.headers == [*OURS, *left, ("tenant", b"a"), ("imported-from", b"timers/2/7")]


def test_an_exported_cron_that_was_not_begun_begins_again() -> None:
    cron = ("timer-cron", b"0 9 * * *")
    found = moved([(TOPIC, b"orders"), cron], timestamp_ms=NOW_MS + 9)
    assert found.headers == [OURS[0], OURS[2], cron, ("imported-from", b"timers/2/7")]
