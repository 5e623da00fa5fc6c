"""The API of two bridges of one group, over HTTP; Kafka is in memory."""

import json
import logging
import re
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

import pytest

from bridge.cli.api_client import ApiClient
from bridge.errors import BridgeError
from bridge.page.api.requests import TimersAsked
from bridge.page.sessions import Authenticator
from bridge.query.summary import Named
from bridge.tests.simulation.http_fakes import KEY, OPERATOR, READER, TIMERS, Answer, MemoryOutbox, Page, Place
from kafka_timer import Sent

pytestmark = pytest.mark.thorough

HOUR_MS = 3_600_000


def schedule(place: Place, count: int, topic: str = "orders", *, prefix: str = "id-") -> None:
    for number in range(count):
        place.producer.schedule(
            topic, f"v{number}", key=f"k{number % 3}", headers=[("tenant", "a")], delay="2h", id=f"{prefix}{number}"
        )
    place.run(400)


def counted(page: Page, selector: dict[str, str]) -> dict[str, Any]:
    """Count a selection, and return the body of a request for an action on it."""
    return {"selector": selector, "token": page.post("/api/v1/selection/count", {"selector": selector})[1]["token"]}


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bridge.audit"]


def says(answer: tuple[int, Any] | Answer, status: int, text: str) -> bool:
    """Return True if an answer has this status, and the text in its reason or page."""
    told = answer[1] if isinstance(answer, Answer) else answer[1]["reason"]
    return (answer[0], text in told) == (status, True)


def ids_of(told: Any) -> list[str]:
    return [timer["id"] for timer in told["timers"]]


# -- the API


def test_every_operation_is_described_with_its_errors(place: Place) -> None:
    status, told = place.pages[0].get("/api/v1/openapi.json")
    assert (status, told["security"]) == (200, [{"token": []}, {}])
    described = {
        one["operationId"]: (method, path, one["responses"].keys())
        for path, each in told["paths"].items()
        for method, one in each.items()
    }
    errors = {"200", "400", "401", "403", "429", "503", "default"}
    expected = {}
    for name in ("overview", "instance", "pending", "timers", "receipts", "outcomes", "rejected"):
        expected[name] = ("get", f"/api/v1/{name}", errors)
    expected["rejected_record"] = ("get", "/api/v1/rejected/record", errors | {"404"})
    expected["timer"] = ("get", "/api/v1/timer", errors | {"404"})
    for name in ("schedule", "cancel", "move", "release", "replace"):
        expected[name] = ("post", f"/api/v1/timer/{name}", errors)
    for name in ("pause", "resume"):
        expected[name] = ("post", f"/api/v1/topic/{name}", errors)
        expected[f"{name}_timer"] = ("post", f"/api/v1/timer/{name}", errors)
    expected["count"] = ("post", "/api/v1/selection/count", errors)
    for name in ("cancel", "move", "release", "pause", "resume"):
        expected[f"{name}_selection"] = ("post", f"/api/v1/selection/{name}", errors | {"409"})
    expected["redrive"] = ("post", "/api/v1/rejected/redrive", errors)
    assert described == expected
    assert place.pages[0].get("/api/v1/timer/cancel")[0] == place.pages[0].post("/api/v1/timers", {})[0] == 405


# -- reads of the whole group


def test_any_instance_answers_for_all_partitions(place: Place) -> None:
    schedule(place, 40)
    for page in place.pages:
        status, told = page.get("/api/v1/overview")
        assert (status, told["pending"], told["missing"]) == (200, 40, [])
        assert [each["partition"] for each in told["partitions"]] == [f"{TIMERS}/{n}" for n in range(4)]
        owners = {each["partition"]: each["owner"] for each in told["partitions"]}
        assert owners == {str(place_): place.addresses[name or ""] for place_, name in place.group.owner.items()}
        assert {each["address"] for each in told["instances"]} == set(place.addresses.values())
        assert all(each["resident_bytes"] > 0 and each["disk"]["free_bytes"] > 0 for each in told["instances"])
        pending = page.get("/api/v1/pending?topic=orders&bucket=1d")[1]
        assert (pending["pending"], len(pending["shards"])) == (40, 4)
        assert pending["next_due_ms"] == pending["topics"]["orders"]["first_due_ms"]
        assert page.get("/api/v1/pending?local=true")[1]["pending"] < 40
    place.run(2 * HOUR_MS)
    told = place.pages[0].get("/api/v1/overview")[1]
    assert (told["pending"], told["late_p50_ms"] is not None, told["out_per_s"] > 0) == (0, True, True)


def test_timers_of_all_instances_come_in_due_order_page_by_page(place: Place) -> None:
    schedule(place, 70)
    schedule(place, 9, "bills", prefix="bill-")
    seen: list[dict[str, Any]] = []
    path = "/api/v1/timers?topic=orders&limit=8"
    after = ""
    while True:
        told = place.pages[len(seen) % 2].get(path + after)[1]
        assert told["matching"] == 70 - len(seen)
        seen += told["timers"]
        if told["after"] is None:
            break
        after = f"&after={quote(told['after'])}"
    assert len(seen) == 70
    assert [each["due_ms"] for each in seen] == sorted(each["due_ms"] for each in seen)
    assert {each["id"] for each in seen} == {f"id-{n}" for n in range(70)}
    assert place.pages[0].get("/api/v1/timers?after=x")[0] == 400
    now_ms = told["at_ms"]
    path = f"/api/v1/timers?limit=0&due_from={now_ms}&due_to={now_ms + 3 * HOUR_MS}"
    told = place.pages[0].get(f"{path}&bucket=10m")[1]
    assert sum(each["timers"] for each in told["histogram"]) == 79
    by_topic = {topic: sum(each["timers"] for each in own) for topic, own in told["topics"].items()}
    assert by_topic == {"bills": 9, "orders": 70}
    assert says(place.pages[0].get(f"{path}&bucket=1ms"), 400, "at most 1000 buckets apart")
    status, told = place.pages[0].get("/api/v1/timers?limt=8")
    assert (status, told) == (400, {"reason": "limt: Extra inputs are not permitted"})


def test_an_id_is_found_on_any_instance_with_its_value_on_request(place: Place) -> None:
    schedule(place, 12)
    for page in place.pages:
        for number in range(12):
            status, told = page.get(f"/api/v1/timer?id=id-{number}")
            (timer,) = told["timers"]
            assert (status, timer["id"], timer["topic"], timer["value"]) == (200, f"id-{number}", "orders", None)
            tenant = {"name": "tenant", "value": {"bytes": 1, "text": "a", "base64": None, "is_cut": False}}
            assert tenant in timer["headers"]
    told = place.pages[0].get("/api/v1/timer?id=id-3&value=true")[1]
    assert told["timers"][0]["value"]["text"] == "v3"
    status, told = place.pages[0].get("/api/v1/timer?id=nobody")
    assert (status, told["timers"], told["missing"]) == (404, [], [])
    assert place.pages[0].get("/api/v1/timer")[1]["reason"] == "give one of id, id_base64 and origin"
    assert place.pages[0].get("/api/v1/timer?id_base64=x")[0] == 400


def test_partitions_of_a_silent_instance_are_missing_with_the_reason(place: Place) -> None:
    schedule(place, 40)
    place.instances[1].is_running = False  # its loop hangs
    told = place.pages[0].get("/api/v1/timers?limit=0")[1]
    assert len(told["missing"]) == 2
    assert all("the bridge is busy" in each["why"] for each in told["missing"])
    place.instances[1].is_running = True
    for address, why in (("127.0.0.1:1", "Connection refused"), ("", "announces no address")):
        place.addresses["two"] = address
        told = place.pages[0].get("/api/v1/pending")[1]
        assert [why in each["why"] for each in told["missing"]] == [True, True]
        assert 0 < told["pending"] < 40
    place.addresses["two"] = place.addresses["one"]
    assert all("--advertised-http" in each["why"] for each in place.pages[0].get("/api/v1/pending")[1]["missing"])
    place.sides[0].error = BridgeError("no broker")
    told = place.pages[0].get("/api/v1/pending")[1]
    assert all("its owner is not known: no broker" in each["why"] for each in told["missing"])


# -- changes


def test_a_cancel_by_any_instance_finds_its_timer_and_returns_the_outcome_also_after_an_error(place: Place) -> None:
    schedule(place, 8)
    place.sides[0].silences = [None, BridgeError("no broker"), BridgeError("others ask Kafka just now")]
    for each in range(8):
        status, told = place.pages[each // 2 % 2].post("/api/v1/timer/cancel", {"id": f"id-{each}"})
        assert (status, told["outcomes"], told["unanswered"], len(told["sent"])) == (200, {"cancelled": 1}, 0, 1)
    assert (place.pages[1].get("/api/v1/overview")[1]["pending"], place.sides[0].silences) == (0, [])
    told = place.pages[1].post("/api/v1/timer/cancel", {"id": "id-0", "everywhere": True})[1]
    assert (told["outcomes"], len(told["sent"])) == ({"not-found": 4}, 4)
    place.run(3 * HOUR_MS)
    assert place.kafka.read("orders") == []


def test_a_topic_that_takes_no_records_is_named_with_the_time_since_when(place: Place) -> None:
    for number in range(12):
        place.producer.schedule("orders", "v", delay="5s", id=f"id-{number}")
    place.kafka.topics["orders"].unavailable = True
    place.run(8000)
    told = place.pages[1].get("/api/v1/overview")[1]["unavailable_topics"]
    assert place.kafka.timeline.now_ms - 4000 < told["orders"] < place.kafka.timeline.now_ms
    assert "takes no records since" in place.pages[0].ask("GET", "/").text
    place.kafka.topics["orders"].unavailable = False
    place.run(60_000)
    assert place.pages[1].get("/api/v1/overview")[1]["unavailable_topics"] == {}


def test_a_selection_is_counted_then_cancelled_and_never_more_than_was_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(place, 60)
    place.producer.schedule("orders", "no id", key="k1", delay="2h")
    place.run(300)
    selector = {"topic": "orders", "key_prefix": "k1", "header": "tenant=a"}
    page = place.pages[0]
    count = page.post("/api/v1/selection/count", {"selector": selector})[1]
    assert (count["matching"], len(count["first"]), count["missing"]) == (20, 10, [])
    asked = {"selector": {"topic": "orders", "key_prefix": "k1"}, "token": count["token"]}
    assert says(page.post("/api/v1/selection/cancel", asked), 400, "not that of this selector")

    place.producer.schedule("orders", "late", key="k1", headers=[("tenant", "a")], delay="2h", id="late")
    place.run(300)
    page.post("/api/v1/timer/cancel", {"id": "id-1"})  # the same number matches as was counted
    asked = {"selector": selector, "token": count["token"]}
    assert says(page.post("/api/v1/selection/move", {**asked, "by": "1h"}), 409, "1 match now that were not counted")
    told = place.pages[1].post("/api/v1/selection/cancel", asked)[1]
    assert (told["outcomes"], told["left"], len(told["sent"])) == ({"cancelled": 19}, 1, 19)
    assert ids_of(page.get("/api/v1/timers?key_prefix=k1&header=tenant%3Da")[1]) == ["late"]
    assert page.post("/api/v1/selection/cancel", asked)[1]["sent"] == []
    assert says(page.post("/api/v1/selection/cancel", {**asked, "token": count["token"][:-1]}), 400, "is cut off")
    page.post("/api/v1/timer/cancel", {"id": "late"})

    selector = {"key_prefix": "k1"}
    count = page.post("/api/v1/selection/count", {"selector": selector})[1]
    told = page.post("/api/v1/selection/cancel", {"selector": selector, "token": count["token"]})[1]
    assert (count["matching"], told["outcomes"], len(told["sent"])) == (1, {"cancelled": 1}, 1)
    monkeypatch.setattr("bridge.page.api.actions.GOOD_FOR_MS", 1_000)
    place.run(2_000)
    status, told = page.post("/api/v1/selection/cancel", {"selector": selector, "token": count["token"]})
    assert (status, told["reason"]) == (400, "the count is too old: count again")
    assert says(page.post("/api/v1/selection/count", {"selector": {}}), 400, "would take all timers")


def test_a_timer_without_an_id_is_found_by_its_request(place: Place) -> None:
    schedule(place, 40)
    sent = [place.producer.schedule("orders", f"v{n}", key="k", delay="2h").result(0) for n in range(4)]
    place.run(300)
    for number, each in enumerate(sent):
        origin = f"{each.topic}/{each.partition}/{each.offset}"
        for page in place.pages:
            status, found = page.get(f"/api/v1/timer?origin={origin}&value=true")
            (timer,) = found["timers"]
            assert (status, timer["shard"], timer["origin"]) == (200, f"{each.topic}/{each.partition}", each.offset)
            assert (timer["id"], timer["state"], timer["value"]["text"]) == (None, "pending", f"v{number}")
    (named,) = place.pages[0].get("/api/v1/timer?id=id-3")[1]["timers"]
    (timer,) = place.pages[0].get(f"/api/v1/timer?origin={named['shard']}/{named['origin']}")[1]["timers"]
    assert timer == named
    first, second, third, _ = ("/".join(map(str, each)) for each in sent)
    for page, to in zip(place.pages, ({"delay": "3h"}, {"at": str(named["due_ms"])}), strict=True):
        assert page.post("/api/v1/timer/move", {"origin": first} | to)[1]["outcomes"] == {"moved": 1}
    (timer,) = place.pages[0].get(f"/api/v1/timer?origin={first}")[1]["timers"]
    assert timer["due_ms"] == named["due_ms"]
    assert place.pages[0].post("/api/v1/timer/cancel", {"origin": first})[1]["outcomes"] == {"cancelled": 1}
    assert place.pages[1].post("/api/v1/timer/cancel", {"origin": first})[1]["outcomes"] == {"not-found": 1}
    assert place.pages[0].post("/api/v1/timer/release", {"origin": second})[1]["outcomes"] == {"moved": 1}
    place.run(300)
    assert [entry.value for entry in place.kafka.read("orders")] == [b"v1"]
    asked = {"origin": third, "topic": "orders", "value": "v", "delay": "1h"}
    assert place.pages[0].post("/api/v1/timer/replace", asked)[0] == 400
    assert place.pages[0].post("/api/v1/timer/cancel", {"origin": third, "everywhere": True})[0] == 400
    assert place.pages[0].get(f"/api/v1/timer?origin={TIMERS}/0/4711")[0] == 404
    for error in ("4711", "t/0/x", "t/-1/7", "0/7", "t/0/7&id=a", "t/0/" + "9" * 19):
        assert place.pages[0].get(f"/api/v1/timer?origin={error}")[0] == 400, error


def test_a_question_by_origin_misses_only_its_partition(place: Place) -> None:
    schedule(place, 40)
    place.addresses["two"] = "127.0.0.1:1"
    one, two = (next(each for each, owner in place.group.owner.items() if owner == name) for name in ("one", "two"))
    for origin, found in ((str(one), (404, 0)), (str(two), (200, 1)), (f"{two.topic}/0{two.partition}", (200, 1))):
        status, told = place.pages[0].get(f"/api/v1/timer?origin={origin}/4711")
        assert (status, len(told["missing"])) == found


def test_a_selection_is_not_acted_on_while_its_partitions_do_not_answer(place: Place) -> None:
    schedule(place, 20)
    asked = counted(place.pages[0], {"topic": "orders"})
    address, place.addresses["two"] = place.addresses["two"], "127.0.0.1:1"
    for action, more in (("cancel", {}), ("release", {}), ("move", {"by": "1h"})):
        told = place.pages[0].post(f"/api/v1/selection/{action}", asked | more)
        theirs = [str(timer_partition) for timer_partition, name in place.group.owner.items() if name == "two"]
        assert all(says(told, 409, text) for text in ("nothing was sent", *theirs))
    place.addresses["two"] = address
    assert place.pages[0].get("/api/v1/overview")[1]["pending"] == 20
    assert len(place.pages[0].post("/api/v1/selection/cancel", asked)[1]["sent"]) == 20


def test_a_timer_that_was_replaced_or_moved_since_was_not_counted(place: Place) -> None:
    schedule(place, 4)
    asked = counted(place.pages[0], {"topic": "orders"})
    place.producer.replace("id-0", "orders", "new", delay="2h").result(0)
    place.producer.move("id-1", delay="3h").result(0)
    place.run(300)
    told = place.pages[0].post("/api/v1/selection/cancel", asked)[1]
    assert (told["outcomes"], told["left"]) == ({"cancelled": 2}, 2)
    assert sorted(ids_of(place.pages[0].get("/api/v1/timers")[1])) == ["id-0", "id-1"]


def test_a_paused_timer_is_told_with_its_own_due_time(place: Place) -> None:
    """In lists, in searches by due time, under its id, and in the counts of topics."""
    schedule(place, 2)
    place.producer.schedule("bills", "v", delay="2h", id="b").result(0)
    place.run(300)
    page = place.pages[0]
    (before,) = page.get("/api/v1/timer?id=id-0")[1]["timers"]
    for path in ("timer/pause", "timer/pause", "timer/resume", "timer/pause"):
        told = page.post(f"/api/v1/{path}", {"id": "id-0"})[1]
        assert told["outcomes"] == {f"{path.rpartition('/')[2]}d": 1}
    page.post("/api/v1/timer/pause", {"id": "b"})
    place.run(300)
    (after,) = page.get("/api/v1/timer?id=id-0")[1]["timers"]
    assert (before["is_paused"], after["is_paused"], after["due_ms"]) == (False, True, before["due_ms"])
    due = f"due_from={before['due_ms']}&due_to={before['due_ms'] + 1}"
    found = page.get(f"/api/v1/timers?topic=orders&bucket=1m&{due}")[1]
    assert [(each["id"], each["is_paused"]) for each in found["timers"] if each["id"] == "id-0"] == [("id-0", True)]
    assert all(bucket["from_ms"] <= before["due_ms"] for bucket in found["histogram"])
    pending = page.get("/api/v1/pending")[1]
    orders, bills = pending["topics"]["orders"], pending["topics"]["bills"]
    assert (orders["pending"], orders["paused"], sum(each["timers"] for each in orders["histogram"])) == (2, 1, 1)
    assert pending["next_due_ms"] == orders["first_due_ms"] <= orders["last_due_ms"] < before["due_ms"] + 2 * HOUR_MS
    assert bills == {"pending": 1, "paused": 1, "first_due_ms": None, "last_due_ms": None, "histogram": []}
    place.run(3 * HOUR_MS)
    left = page.get("/api/v1/timers?limit=5")[1]["timers"]
    assert sorted((each["id"], each["is_paused"]) for each in left) == [("b", True), ("id-0", True)]
    assert page.get("/api/v1/pending")[1]["next_due_ms"] is None


def test_the_same_id_in_another_partition_is_another_timer(place: Place) -> None:
    def pending() -> list[tuple[str, str]]:
        told = place.pages[0].get("/api/v1/timer?id=x")[1]
        return sorted((timer["topic"], timer["shard"]) for timer in told["timers"])

    own = place.producer.partition_of("x")
    there, elsewhere = (own + 1) % 4, (own + 2) % 4
    for topic, partition in (("orders", there), ("bills", elsewhere), ("bills", own)):
        headers = [("timer-topic", topic.encode()), ("timer-delay-ms", b"7200000"), ("timer-id", b"x")]
        place.kafka.produce(TIMERS, b"v", headers=headers, partition=partition)
    place.run(300)
    told = place.pages[0].post("/api/v1/selection/release", counted(place.pages[0], {"topic": "orders"}))[1]
    assert told["outcomes"] == {"moved": 1}
    place.run(300)
    assert [entry.value for entry in place.kafka.read("orders")] == [b"v"]
    assert pending() == sorted([("bills", f"{TIMERS}/{elsewhere}"), ("bills", f"{TIMERS}/{own}")])
    asked = {"id": "x", "partition": elsewhere}
    assert place.pages[1].post("/api/v1/timer/move", asked | {"delay": "3h"})[1]["outcomes"] == {"moved": 1}
    due_ms = {timer["shard"]: timer["due_ms"] for timer in place.pages[0].get("/api/v1/timer?id=x")[1]["timers"]}
    assert due_ms[f"{TIMERS}/{elsewhere}"] > due_ms[f"{TIMERS}/{own}"] + HOUR_MS // 2
    assert place.pages[1].post("/api/v1/timer/cancel", asked)[1]["outcomes"] == {"cancelled": 1}
    assert pending() == [("bills", f"{TIMERS}/{own}")]
    assert place.pages[1].post("/api/v1/timer/cancel", {**asked, "everywhere": True})[0] == 400


def test_rejected_records_are_listed_with_their_reason_and_sent_again_once(place: Place) -> None:
    place.producer.schedule("nowhere", "v", delay="1s", id="lost").result(0)
    place.kafka.produce(TIMERS, b"bad", headers=[("timer-topic", b"orders")])
    place.kafka.produce("timer.rejected", b"not a bridge's", headers=[])
    place.run(2000)
    told = place.pages[1].get("/api/v1/rejected")[1]
    assert [each["code"] for each in told["records"]] == ["unknown-topic", "missing-time"]
    assert (told["looked_at"], told["has_older"]) == (3, False)
    record = told["records"][0]
    assert (record["topic"], record["id"], record["may_redrive"]) == ("nowhere", "lost", True)
    assert "nowhere" in record["detail"]
    assert len(place.pages[0].get("/api/v1/rejected?code=missing-time")[1]["records"]) == 1
    place.kafka.create("nowhere")
    names = {"records": [record["parked"], "timer.rejected/0/4711", "timer.rejected/99/0"]}
    assert place.pages[0].post("/api/v1/rejected/redrive", names)[1] == {"sent": 1, "refused": {}, "not_sent": 2}
    assert place.pages[0].post("/api/v1/rejected/redrive", names)[1] == {"sent": 0, "refused": {}, "not_sent": 3}
    place.run(2000)
    assert [entry.value for entry in place.kafka.read("nowhere")] == [b"v"]
    assert place.pages[0].get("/api/v1/rejected?topic=nowhere")[1]["records"][0]["is_redriven"] is True
    assert place.pages[0].post("/api/v1/rejected/redrive", {"records": ["orders/0/1"]})[0] == 400
    assert place.pages[0].post("/api/v1/rejected/redrive", {"records": ["timer.rejected/0/²"]})[0] == 400


def test_a_record_whose_origin_is_no_timer_topic_is_not_sent(place: Place) -> None:
    reason = [("timer-error", b"unknown-topic"), ("timer-error-detail", b""), ("timer-origin", b"bills/0/7")]
    place.kafka.produce("timer.rejected", b"forged", headers=[("timer-topic", b"orders"), *reason])
    (record,) = place.pages[0].get("/api/v1/rejected")[1]["records"]
    assert (record["origin"], record["may_redrive"]) == ("bills/0/7", False)
    told = place.pages[0].post("/api/v1/rejected/redrive", {"records": [record["parked"]]})[1]
    assert told == {"sent": 0, "refused": {}, "not_sent": 1}
    assert place.kafka.read("bills") == []


def test_no_more_than_the_latest_rejected_records_are_read() -> None:
    with Place(looked_at=5) as place:
        for number in range(9):
            place.kafka.produce(TIMERS, b"%d" % number, headers=[("timer-topic", b"orders")])
        place.run(500)
        told = place.pages[0].get("/api/v1/rejected")[1]
        assert told["has_older"] is True
        assert 0 < told["looked_at"] == len(told["records"]) <= 5  # transaction markers take offsets too


# -- rights


def test_a_token_says_who_may_read_and_who_may_change(guarded: Place) -> None:
    schedule(guarded, 4)
    page = guarded.pages[0]
    for secret in (None, "", "wrong", "r" * 31):
        assert says(page.holding(secret).get("/api/v1/overview"), 401, "Authorization: Bearer")
    reader, operator = page.holding("r" * 32), page.holding("o" * 32)
    assert reader.get("/api/v1/overview")[1]["pending"] == 4
    assert reader.get("/api/v1/timer?id=id-1")[0] == 200
    assert reader.post("/api/v1/selection/count", {"selector": {"topic": "orders"}})[0] == 200
    for path, asked in (("timer/cancel", {"id": "id-1"}), ("rejected/redrive", {"records": ["timer.rejected/0/0"]})):
        assert says(reader.post(f"/api/v1/{path}", asked), 403, "rita may only read")
    assert operator.post("/api/v1/timer/cancel", {"id": "id-1"})[1]["outcomes"] == {"cancelled": 1}
    assert page.get("/pending")[0] == page.get("/health/live")[0] == 200, "as before, for all"
    for id_ in ("id-2", "nobody"):
        assert page.get(f"/pending?id={id_}")[0] == page.holding("wrong").get(f"/pending?id={id_}")[0] == 401
    answers = [each.holding("r" * 32).get("/pending?id=id-2")[0] for each in guarded.pages]
    assert sorted(answers) == [200, 404], "its owner's, and the other's"
    with pytest.raises(BridgeError, match=r"it needs one of its tokens; give it in a file, --token-file"):
        ApiClient(page.url, "--http-port").get("/pending", {"id": "id-2"}, Named)


def test_a_body_is_not_read_without_a_token_and_is_json_whatever_its_type(guarded: Place) -> None:
    page = guarded.pages[0]
    assert page.ask("POST", "/api/v1/timer/cancel", None, **{"Content-Length": "1000000"}).status == 401, "at once"
    operator, plain = page.holding("o" * 32), {"Content-Type": "text/plain"}
    assert operator.post("/api/v1/timer/cancel", {"id": "a"}, **plain)[0] == 200
    surrogate = operator.post("/api/v1/topic/pause", {"topic": "\ud800"})
    assert says(surrogate, 400, "Invalid JSON"), "such a topic could not be encoded"
    assert says(operator.post("/api/v1/timer/cancel", {"id": "x" * (3 << 20)}), 413, "bytes")


def test_a_peer_token_is_valid_for_one_read(guarded: Place) -> None:
    access = Authenticator([READER, OPERATOR], lambda: guarded.kafka.timeline.now_ms / 1000, key=KEY)
    caller = access.caller_by_token("o" * 32)
    assert caller is not None
    page, other = guarded.pages
    here = page.url.removeprefix("http://")
    given = {"Authorization": f"Pass {access.sign_peer_token(caller, here, '/api/v1/timers?limit=1')}"}
    for host in (here, "127.0.0.1:1"):
        assert other.get("/api/v1/timers?limit=1", Host=host, **given)[0] == 401, "at another address"
    assert page.get("/api/v1/timers?limit=1", **given)[0] == 200
    assert page.get("/api/v1/timers?limit=2", **given)[0] == 401
    assert page.get("/api/v1/pending?limit=1", **given)[0] == 401
    assert page.post("/api/v1/timers?limit=1", {}, **given)[0] in (401, 405)
    guarded.run(31_000)
    assert page.get("/api/v1/timers?limit=1", **given)[0] == 401


def test_without_tokens_no_other_site_can_use_a_browser(place: Place) -> None:
    page = place.pages[0]
    for path in ("/api/v1/overview", "/api/v1/openapi.json", "/login", "/static/page.css"):
        for host in ("evil.example:8321", "10.1.2.3"):
            assert says(page.get(path, Host=host), 403, "127.0.0.1 or localhost")
        assert page.ask("GET", path, Host="localhost:1").status in (200, 303)
    asked = {"id": "a"}
    status, told = page.post("/api/v1/timer/cancel", asked, **{"Content-Type": "text/plain"})
    assert (status, told["reason"]) == (400, "send JSON, as Content-Type: application/json")


def test_every_action_is_one_line_of_the_audit_log(guarded: Place, caplog: pytest.LogCaptureFixture) -> None:
    schedule(guarded, 3)
    operator = guarded.pages[0].holding("o" * 32)
    with caplog.at_level(logging.INFO, "bridge.audit"):
        operator.post("/api/v1/timer/cancel", {"id": "id-0\nwho=root"}, **{"X-Forwarded-For": "10.0.0.1 did=nothing"})
        operator.post("/api/v1/timer/cancel", {"id": "a", "timer_topic": "orders"})
        operator.get("/api/v1/timer?id=id-1&value=true")
        operator.get("/api/v1/timer?id=id-1&value=true&local=true")
        operator.post("/api/v1/selection/cancel", counted(operator, {"topic": "orders"}))
    lines = audit_lines(caplog)
    assert [re.sub("act=[0-9a-f]{8} ", "", line).split(" what=")[0] for line in lines] == [
        'who=otto where="127.0.0.1" did=cancel',
        'who=otto where="127.0.0.1" did=cancel',
        'who=otto where="127.0.0.1" did=read value',
        'who=otto where="127.0.0.1" did=read value',
        'who=otto where="127.0.0.1" did=cancel selection',
    ]
    what, came = (json.loads(each) for each in lines[0].split(" what=")[1].split(" came="))
    assert (what["id"], came["outcomes"]) == ("id-0\nwho=root", {"not-found": 1})
    assert "failed" in lines[1]
    assert all("\n" not in line for line in lines)
    assert sorted(json.loads(lines[4].split(" came=")[1])["ids"]) == ["id-0", "id-1", "id-2"]


def test_the_audit_log_holds_no_key_no_value_and_no_header_value(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    page, secret = place.pages[0], "card-4711"
    asked = {"id": "a", "topic": "orders", "delay": "1h", "key": secret, "value": f"{secret}!"}
    selector = {"topic": "orders", "key_prefix": secret, "header": f"tenant={secret}"}
    with caplog.at_level(logging.INFO, "bridge.audit"):
        assert page.post("/api/v1/timer/replace", asked | {"headers": [{"name": "tenant", "value": secret}]})[0] == 200
        place.run(300)
        assert page.post("/api/v1/selection/cancel", counted(page, selector))[1]["sent"] != []
    lines = audit_lines(caplog)
    assert [line for line in lines if secret in line] == []
    replaced, cancelled = (json.loads(line.split(" what=")[1].split(" came=")[0]) for line in lines)
    assert (replaced["key"], replaced["value"], replaced["headers"]) == ("9 bytes", "10 bytes", ["tenant"])
    assert cancelled["selector"] == {"topic": "orders", "key_prefix": "9 bytes", "header": "tenant"}


def test_requests_sent_before_a_failure_are_in_the_audit_log(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(place, 6)
    asked = counted(place.pages[0], {"topic": "orders"})
    sending, calls = MemoryOutbox.send, iter(range(9))

    def send(outbox: MemoryOutbox, *given: Any) -> Future[Sent]:
        number = next(calls)
        if number == 4:
            raise BridgeError("the queue is full")
        if number == 1:
            refused: Future[Sent] = Future()
            refused.set_exception(BridgeError("not taken"))
            return refused
        return sending(outbox, *given)

    monkeypatch.setattr(MemoryOutbox, "send", send)
    with caplog.at_level(logging.INFO, "bridge.audit"):
        status, _ = place.pages[0].post("/api/v1/selection/cancel", asked)
    assert status == 503
    came = json.loads(caplog.records[-1].getMessage().split(" came=")[1])
    assert (len(came["sent"]), sorted(came["ids"])) == (3, [f"id-{n}" for n in range(6)])
    assert came["failed"] == "the queue is full"


def test_records_redriven_before_a_failure_are_in_the_audit_log(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        place.producer.schedule("nowhere", str(number), delay="1s").result(0)
    place.run(2000)
    names = [each["parked"] for each in place.pages[0].get("/api/v1/rejected")[1]["records"]]
    place.sides[0].resends = 2
    with caplog.at_level(logging.INFO, "bridge.audit"):
        assert place.pages[0].post("/api/v1/rejected/redrive", {"records": names})[0] == 503
        place.sides[0].resends = None
        assert place.pages[0].post("/api/v1/rejected/redrive", {"records": names})[1]["sent"] == 1
    first, second = (
        json.loads(each.getMessage().split(" came=")[1]) for each in caplog.records if each.name == "bridge.audit"
    )
    assert (len(first["sent_again"]), first["failed"]) == (2, "sending again broke off")
    assert sorted(first["sent_again"] + second["sent_again"]) == sorted(names)
    assert (second["sent"], second["not_sent"]) == (1, 2)


@pytest.mark.parametrize("seconds", [1_798_135_200, "1798135200"])
def test_a_time_in_seconds_is_refused_and_an_early_one_reaches_the_peers(seconds: int | str) -> None:
    with pytest.raises(ValueError, match="looks like seconds"):
        TimersAsked.model_validate({"due_from": seconds})
    early = TimersAsked.model_validate({"due_from": "1970-01-02T00:00:00Z"})
    assert TimersAsked.model_validate({"due_from": str(early.due_from)}) == early
