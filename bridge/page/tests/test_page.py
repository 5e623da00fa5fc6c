"""The page as HTML, without a browser: permissions, escaping, and forms of other sites."""

import csv
import io
import json
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.observe.metrics import Lag
from bridge.page.lookups import AuditTables, SchemaRegistry
from bridge.page.sessions import Token
from bridge.page.tests.test_api import counted, says, schedule
from bridge.tests.simulation.http_fakes import OPERATOR, TIMERS, Answer, Page, Place
from kafka_timer import Repeat, headers_for
from kafka_timer.origin import TimerPartition
from schemas.tables import REQUESTS

pytestmark = pytest.mark.thorough

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Browser(Page):
    """An HTTP client with forms."""

    def show(self, path: str) -> Answer:
        return self.ask("GET", path)

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        return self.ask("POST", path, urlencode(fields).encode(), **headers)

    def log_in(self, secret: str) -> Answer:
        return self.send("/login", {"token": secret})

    def form_key(self, path: str = "/rejected") -> str:
        found = re.search(r'name="form_key" value="([0-9a-f]+)"', self.show(path).text)
        assert found is not None
        return found[1]


@pytest.fixture
def browser(place: Place) -> Browser:
    return Browser(place.pages[0].url)


def send(place: Place, **headers: str) -> None:
    own = {"timer-topic": "orders", "timer-delay-ms": "7200000", **headers}
    pairs = [(name, value.encode()) for name, value in own.items()]
    place.kafka.produce(TIMERS, HOSTILE.encode(), key=HOSTILE.encode(), headers=pairs, partition=0)
    place.run(300)


def test_every_page_forbids_scripts_and_frames_of_others(place: Place, browser: Browser) -> None:
    for path in ("/", "/?span=hour", "/timers", "/outcomes", "/new", "/timer?id=a", "/rejected", "/timers?after=x"):
        answer = browser.show(path)
        assert answer.status == (400 if "after" in path else 404 if "id=" in path else 200), path
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not re.search(r"<script(?! src=\"/static/page\.js\")| style=| on\w+=", answer.text), path


def test_the_chart_leads_from_days_to_hours_and_to_what_is_due_later(place: Place, browser: Browser) -> None:
    place.producer.schedule("orders", "v", delay="26h", id="a")
    place.producer.schedule("bills", "v", delay="26h", id="b")
    place.run(300)
    assert "Nothing is due then" in browser.show("/").text
    text = unescape(browser.show("/?span=month").text)
    drawn, listed = re.findall(r'href="(/\?span=day&from=[^\"]+)"', text)
    assert drawn == listed, "the link of the chart and that of the table"
    assert "2 timers (bills: 1, orders: 1)" in unescape(browser.show(drawn).text)
    later = re.search(r'href="([^"]+)">Later<', browser.show("/").text)
    assert later is not None
    assert "2 timers (bills: 1, orders: 1)" in browser.show(unescape(later[1])).text
    for wrong, status in (("soon", 400), ("1" * 30, 400), ("9" * 14, 200)):
        assert browser.show(f"/?span=hour&from={wrong}").status == status


def test_message_content_is_escaped(place: Place, browser: Browser) -> None:
    place.producer.schedule("orders", HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE)], delay="2h", id=HOSTILE)
    send(place, **{"timer-delay-ms": HOSTILE, "timer-id": "\u202etxt.exe\n"})
    pages = [
        browser.show(path).text
        for path in (
            "/",
            "/timers",
            f"/timers?{urlencode({'topic': HOSTILE, 'header': HOSTILE})}",
            f"/timer?{urlencode({'id': HOSTILE, 'value': 'true'})}",
            "/rejected",
            f"/rejected?{urlencode({'code': HOSTILE})}",
            "/rejected?record=timer.rejected/0/0",
            "/outcomes",
        )
    ]
    assert "&lt;script&gt;" in pages[1]
    assert pages[3].count("&lt;script&gt;") >= 5, "id, key, header, its value, value"
    assert "bad-header" in pages[4]
    assert pages[6].count("&lt;script&gt;") >= 2, "key and value"
    assert "bad-header" in pages[6]
    for text in pages:
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\u202e" not in text


def test_nothing_is_shown_before_the_login(guarded: Place) -> None:
    browser = Browser(guarded.pages[0].url)
    for path in ("/", "/timers?topic=a", "/new", "/search?q=a", "/rejected"):
        answer = browser.show(path)
        assert (answer.status, answer.headers["Location"]) == (303, f"/login?{urlencode({'next': path})}")
    assert browser.send("/timer/cancel", {"id": "a"}).status == 303
    error = browser.log_in("x" * 32)
    assert (error.status, "not known" in error.text, error.headers["Set-Cookie"]) == (401, True, None)
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb"):
        found = browser.send(f"/login?{urlencode({'next': elsewhere})}", {"token": "r" * 32})
        assert (found.status, found.headers["Location"]) == (303, "/"), elsewhere
    cookie = browser.log_in("r" * 32).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "r" * 32 not in cookie
    assert browser.show("/").status == 200


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_the_cookie_is_secure_if_a_proxy_ends_tls(guarded: Place, scheme: str) -> None:
    browser, secure = Browser(guarded.pages[0].url), scheme == "https"
    origin = {"Origin": f"{scheme}://{browser.url.partition('://')[2]}"}
    cookie = browser.send("/login", {"token": "o" * 32}, **origin).headers["Set-Cookie"]
    assert ("Secure" in cookie, "HttpOnly" in cookie, "SameSite=strict" in cookie) == (secure, True, True)
    ended = browser.send("/logout", {"form_key": browser.form_key()}, **origin).headers["Set-Cookie"]
    assert ("Max-Age=0" in ended, "Secure" in ended) == (True, secure)


def test_a_timer_without_an_id_is_changed_by_its_origin(place: Place, browser: Browser) -> None:
    sent = place.producer.schedule("orders", "v", delay="2h").result(0)
    place.run(300)
    origin = f"{sent.topic}/{sent.partition}/{sent.offset}"
    assert f'href="/timer?{urlencode({"origin": origin})}"' in browser.show("/timers").text
    shown = browser.show(f"/timer?origin={origin}").text
    assert 'action="/timer/replace"' not in shown
    assert shown.count(f'name="origin" value="{origin}"') == 4
    form = re.search(r'<form method="post" action="/timer/release".*?</form>', shown, re.DOTALL)
    assert form is not None
    assert "<dt>moved</dt><dd>1</dd>" in browser.send("/timer/release", pressed(form[0])).text


def test_without_a_token_no_large_body_is_read(guarded: Place) -> None:
    browser = Browser(guarded.pages[0].url)
    for fields in (2000, 20_000):
        assert says(browser.ask("POST", "/login", b"a=&" * fields), 413, "4096 bytes")
    browser.log_in("o" * 32)
    assert says(browser.ask("POST", "/rejected/redrive", b"record=&" * 3000), 413, "more than 2000 fields")
    records = f"record=timer.rejected/0/1&record=timer.rejected/0/2&form_key={browser.form_key()}"
    assert browser.ask("POST", "/rejected/redrive", records.encode()).status == 200


def test_a_reader_is_shown_no_buttons_and_may_not_press_them(guarded: Place) -> None:
    send(guarded, **{"timer-id": "a"})
    reader, operator = Browser(guarded.pages[0].url), Browser(guarded.pages[0].url)
    reader.log_in("r" * 32)
    operator.log_in("o" * 32)
    assert "/timer/cancel" not in reader.show("/timer?id=a").text
    assert "/timer/cancel" in operator.show("/timer?id=a").text
    assert says(reader.send("/timer/cancel", {"id": "a", "form_key": reader.form_key()}), 403, "rita may only read")
    done = operator.send("/timer/cancel", {"id": "a", "form_key": operator.form_key()})
    assert says(done, 200, "1 request was sent")
    thief, key = Browser(guarded.pages[0].url), operator.form_key()
    thief.cookie = operator.cookie
    operator.send("/logout", {"form_key": key})
    assert operator.show("/").status == thief.show("/").status == 303
    assert thief.send("/timer/cancel", {"id": "a", "form_key": key}).status == 303


def test_wrong_tokens_are_limited_and_logged_once_a_minute(guarded: Place, caplog: pytest.LogCaptureFixture) -> None:
    browser, page = Browser(guarded.pages[0].url), guarded.pages[0]
    old = Browser(page.url)
    old.log_in("o" * 32)
    guarded.run(60_000 - guarded.kafka.timeline.now_ms % 60_000)
    for _ in range(5):
        assert browser.log_in("x" * 32).status == page.holding("wrong").get("/api/v1/overview")[0] == 401
    refused = browser.log_in("o" * 32)
    assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
    assert "too many wrong tokens" in refused.text
    for path in ("/api/v1/overview", "/pending?id=a"):
        assert says(page.holding("o" * 32).get(path), 429, "try again in 60 s")
    assert old.show("/").status == 200, "a session needs no token"
    assert page.get("/health/live")[0] == 200
    assert guarded.pages[1].holding("o" * 32).get("/api/v1/overview")[1]["missing"] == [], "neighbours are not limited"
    assert [each.name for each in caplog.records if "docs/page.md" in each.message].count("bridge.page.sessions") == 3
    guarded.run(60_000)
    assert browser.log_in("o" * 32).status == 303


@pytest.mark.parametrize("tokens", [[], [OPERATOR]])
def test_a_form_of_another_site_is_not_taken(tokens: list[Token]) -> None:
    with Place(tokens) as place:
        browser = Browser(place.pages[0].url)
        if tokens:
            browser.log_in("o" * 32)
        send(place, **{"timer-id": "a"})
        key = browser.form_key("/timer?id=a")
        for fields in ({}, {"form_key": ""}, {"form_key": "0" * 64}):
            assert says(browser.send("/timer/cancel", {"id": "a", **fields}), 403, "reload the page")
        forged = browser.send("/timer/cancel", {"id": "a", "form_key": key}, Origin="https://evil.example")
        assert says(forged, 403, "by another site")
        assert place.pages[0].holding("o" * 32).get("/api/v1/overview")[1]["pending"] == 1
        assert browser.send("/timer/cancel", {"id": "a", "form_key": key}, Origin=browser.url).status == 200


def test_ticked_rows_alone_are_moved(place: Place, browser: Browser) -> None:
    schedule(place, 4, prefix="s")
    rows = browser.show("/timers").text
    assert ("all that match" in rows, "all that match" in browser.show("/timers?topic=orders").text) == (False, True)
    names = re.findall(r'name="origins" value="([^"]+)" aria-label="Tick s([13])"', rows)
    fields = [("form_key", browser.form_key("/timers?topic=orders")), ("scope", "ticked"), ("action", "move")]
    assert says(browser.ask("POST", "/selection/count", urlencode(fields).encode()), 400, "no row is ticked")
    ticked = [*fields, *(("origins", name) for name, _ in names)]
    chosen = browser.ask("POST", "/selection/count", urlencode(ticked).encode()).text
    assert "2 timers match" in chosen
    assert re.findall(r'action="/selection/(\w+)"', chosen) == ["move"]
    assert re.findall(r">(s\d|in 1 h 59 min)<", chosen) == ["in 1 h 59 min", "s1", "in 1 h 59 min", "s3"]
    assert 'class="danger"' not in chosen, "a move loses nothing"
    form = re.search(r'<form method="post" action="/selection/move".*?</form>', chosen, re.DOTALL)
    assert form is not None
    assert "<dt>moved</dt><dd>2</dd>" in browser.send("/selection/move", pressed(form[0]) | {"by": "1h"}).text
    due = {each["id"]: each["due_ms"] for each in place.pages[1].get("/api/v1/timers")[1]["timers"]}
    assert [round((due[moved] - due[left]) / 3_600_000, 2) for left, moved in (("s0", "s1"), ("s2", "s3"))] == [1, 1]


def test_timers_are_listed_with_key_value_and_rule_and_downloaded(place: Place, browser: Browser) -> None:
    place.producer.schedule("orders", "=1+1", key="eu-7", delay="2h", id="a")
    place.producer.schedule("bills", b"\xff" * 300, key="\u05e9", delay="1h", id="b")
    place.producer.schedule("bills", "tick", id="c", repeat=Repeat(every="3h"))
    place.run(300)
    text = browser.show("/timers").text
    assert re.findall(r"Tick (\w)\"", text) == ["b", "a", "c"]
    assert re.findall(r"Tick (\w)\"", browser.show("/timers?order=latest").text) == ["c", "a", "b"]
    assert "<option>bills</option><option>orders</option>" in text
    for shown in (">eu-7<", ">\u05e9<", ">=1+1<", ">hex: ff ff", "\u21bb every 3h"):
        assert shown in text, shown
    assert re.findall(r"Tick (\w)\"", browser.show("/timers?key=u-&limit=50").text) == ["a"]
    assert re.findall(r"Tick (\w)\"", browser.show("/timers?rule=3h").text) == ["c"]
    place.producer.pause_timer("b")
    place.run(300)
    assert re.findall(r"Tick (\w)\"", browser.show("/timers?paused=yes").text) == ["b"]
    assert re.findall(r"Tick (\w)\"", browser.show("/timers?paused=no").text) == ["a", "c"]
    assert "0 match" in browser.show("/timers?due_from=2023-11-16T00:00&due_to=2023-11-17T00:00").text
    assert "3 match" in browser.show("/timers?due_from=2023-11-14T00:00&due_to=2023-11-16T00:00:01.5").text
    table = browser.show("/timers/download?format=csv&topic=orders")
    assert table.headers["Content-Disposition"] == 'attachment; filename="timers.csv"'
    (row,) = csv.DictReader(io.StringIO(table.text))
    assert (row["id"], row["key"], row["value"], row["due"][-1]) == ("a", "eu-7", "'=1+1", "Z")
    told = json.loads(browser.show("/timers/download?format=json").text)["timers"]
    sizes = [(each["id"], each["value_bytes"], each["value"]["is_cut"]) for each in told]
    assert sizes == [("b", 300, True), ("a", 4, False), ("c", 4, False)]
    place.instances[1].is_running = False
    assert browser.show("/timers/download").status == 503, "half of the timers are not all of them"


def test_one_search_finds_ids_origins_and_texts_of_keys(place: Place, browser: Browser) -> None:
    sent = place.producer.schedule("orders", "v", key="customer-7", delay="2h", id="a b").result(0)
    place.run(300)
    origin = "/".join(map(str, sent))
    assert '<form action="/search">' in browser.show("/rejected").text
    for text, path in (("a b", "/timer?id=a+b"), ("omer-7", "/timers?key=omer-7"), ("", "/timers?")):
        answer = browser.show(f"/search?{urlencode({'q': text})}")
        assert (answer.status, answer.headers["Location"]) == (303, path)
    assert browser.show(f"/search?q={origin}").headers["Location"] == f"/timer?{urlencode({'origin': origin})}"
    assert "1 match" in browser.show("/timers?key=omer-7").text
    assert browser.show("/timer").headers["Location"] == "/timers"


def test_outcomes_are_the_latest_receipts(place: Place, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        place.producer.schedule("orders", "v", delay=f"{number + 1}s", id=f"o{number}").result(0)
    place.run(2500)
    place.producer.cancel("o2").result(0)
    place.run(10)
    send(place, **{"timer-delay-ms": "soon", "timer-id": HOSTILE})
    kinds = re.findall(r'class="badge(?: bad)?">([\w-]+)<', browser.show("/outcomes").text)
    assert kinds == ["rejected", "cancelled", "delivered", "delivered"]
    assert ">o0<" in browser.show("/outcomes?kind=delivered").text
    assert ">o2<" not in browser.show("/outcomes?kind=delivered").text
    assert browser.show("/outcomes?kind=x").status == 400
    told = place.pages[1].get("/api/v1/outcomes?limit=2")[1]
    assert [each["kind"] for each in told["receipts"]] == kinds[:2]
    monkeypatch.setattr("bridge.page.api.timer_requests._OUTCOME_OFFSETS", 2)
    assert place.pages[1].get("/api/v1/outcomes")[1]["has_older"]


def test_a_rejected_record_is_shown_whole(place: Place, browser: Browser) -> None:
    send(place, **{"timer-delay-ms": "soon", "tenant": "a"})
    assert "/rejected?record=timer.rejected%2F0%2F0" in browser.show("/rejected").text.replace("/0/0", "%2F0%2F0")
    text = browser.show("/rejected?record=timer.rejected/0/0").text
    for shown in (">tenant<", ">soon<", "bad-header", "Confirm: send it again"):
        assert shown in text, shown
    told = place.pages[0].get("/api/v1/rejected/record?record=timer.rejected/0/0")[1]
    assert (told["value"]["text"], told["code"]) == (HOSTILE, "bad-header")
    for wrong, status in (("timer.rejected/0/99", 404), ("timer.rejected/9/0", 404), ("orders/0/0", 400)):
        assert browser.show(f"/rejected?record={wrong}").status == status, wrong


def test_an_operator_sends_a_new_timer(guarded: Place) -> None:
    browser, reader = Browser(guarded.pages[0].url), Browser(guarded.pages[0].url)
    browser.log_in("o" * 32)
    reader.log_in("r" * 32)
    assert (reader.show("/new").status, "/new" in reader.show("/timers").text) == (403, False)
    key = browser.form_key("/new")
    empty = dict.fromkeys(("delay", "at", "id", "key", "headers", "every", "cron", "zone"), "")
    once = {**empty, "topic": "orders", "value": "a\r\nb", "key": "k", "headers": "tenant: a\r\nnote: b:c"}
    done = browser.send("/timer/schedule", {**once, "at": "2023-11-14T23:00", "form_key": key})
    back = re.search(r'href="(/timer\?origin=[^"]+)">Back', done.text)
    guarded.run(300)
    assert back is not None
    assert "2023-11-14T23:00:00.000Z" in browser.show(back[1]).text, "a time without a zone is in UTC"
    rule = {**empty, "topic": "bills", "value": "", "cron": "0 9 * * *", "zone": "Europe/Berlin", "id": "daily"}
    assert browser.send("/timer/schedule", {**rule, "form_key": key}).status == 200
    guarded.run(300)
    assert "0 9 * * * (Europe/Berlin)" in browser.show("/timer?id=daily").text
    assert browser.send("/timer/schedule", {**once, "delay": "soon", "form_key": key}).status == 400
    guarded.run(3_600_000)
    (entry,) = guarded.kafka.read("orders")
    assert (entry.key, entry.value, entry.headers[:2]) == (b"k", b"a\nb", [("tenant", b"a"), ("note", b"b:c")])


def test_an_action_that_takes_long_shows_how_far_it_is(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        send(place, **{"timer-id": f"s{number}"})
    monkeypatch.setattr("bridge.page.views.PROMPT_S", 0)
    browser = Browser(place.pages[0].url)
    key = browser.form_key("/timers?topic=orders")
    fields = {"topic": "orders", "token": count(browser, key), "form_key": key}
    pages = []
    for _ in range(2):  # the second one finds other timers than were counted
        answer = browser.send("/selection/move", fields | {"by": "1h"})
        assert answer.status == 303
        path = answer.headers["Location"]
        while "Requests sent" in (text := browser.show(path).text):
            assert 'max="3" value="' in text or "0 timers" in text
        pages.append(text)
        send(place, **{"timer-id": "new"})
    assert "<dt>moved</dt><dd>3</dd>" in pages[0]
    assert "4 match now that were not counted: nothing was sent" in pages[1]
    assert browser.show("/selection/progress?action=x").status == 404


def count(browser: Browser, key: str) -> str:
    counted = browser.send("/selection/count", {"topic": "orders", "form_key": key}).text
    found = re.search(r'name="token" value="([^"]+)"', counted)
    assert found is not None
    return found[1]


def test_every_button_is_about_the_timer_that_is_shown(place: Place) -> None:
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"7200000"), ("timer-id", b"a")]
    for partition in range(4):
        place.kafka.produce(TIMERS, b"v", headers=headers, partition=partition)
    place.run(300)
    text = Browser(place.pages[0].url).show("/timer?id=a").text
    forms = re.findall(r'<form method="post" action="/timer/(\w+)">(.*?)</form>', text, re.DOTALL)
    for partition in range(4):
        shown = f'name="partition" value="{partition}"'
        assert [name for name, form in forms if shown in form] == ["cancel", "move", "release", "pause"]


def test_a_paused_timer_is_shown_as_such_and_resumed(place: Place, browser: Browser) -> None:
    place.producer.schedule("orders", "v", delay="2h", id="a").result(0)
    place.run(300)
    key = browser.form_key("/timer?id=a")
    assert "<dt>paused</dt><dd>1</dd>" in browser.send("/timer/pause", {"form_key": key, "id": "a"}).text
    place.run(3 * 3_600_000)
    shown = browser.show("/timer?id=a").text
    assert '<span class="badge">paused</span>' in shown
    assert re.findall(r'action="/timer/(\w+)"', shown)[:4] == ["cancel", "move", "release", "resume"]
    assert '<span class="badge">paused</span>' in browser.show("/timers").text
    assert ',"pending, paused",' in browser.show("/timers/download").text
    overview = browser.show("/").text
    assert "1 paused</span>" in overview
    assert "<dt>Next due</dt><dd>none</dd>" in overview
    fields = {"form_key": key, "topic": "orders", "token": counted(browser, {"topic": "orders"})["token"]}
    assert "<dt>resumed</dt><dd>1</dd>" in browser.send("/selection/resume", fields).text
    place.run(300)
    assert "Nothing is pending." in browser.show("/").text


def pressed(form: str) -> dict[str, str]:
    """Return the fields that a browser sends for the unedited form."""
    fields = {name: unescape(value) for name, value in re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', form)}
    for name, text in re.findall(r'<textarea name="(\w+)"[^>]*>(.*?)</textarea>', form, re.DOTALL):
        fields[name] = unescape(text.removeprefix("\n"))
    assert all("\0" not in value for value in fields.values())
    return {name: re.sub(r"\r\n|\r|\n", "\r\n", value) for name, value in fields.items()}


def replacing(place: Place, id_: str, *, with_value: bool = True) -> dict[str, str] | None:
    path = f"/timer?{urlencode({'id': id_, **({'value': 'true'} if with_value else {})})}"
    form = re.search(r'action="/timer/replace".*?</form>', Browser(place.pages[0].url).show(path).text, re.DOTALL)
    return pressed(form[0]) if form else None


@pytest.mark.parametrize(
    ("key", "value"), [("k", "\n\n{\n  <a>: 1\n}\n"), (None, "v"), ("k", None), (" k\u00e4 ", ""), ("k", "v" * 65_536)]
)
def test_an_unedited_replacement_changes_only_the_time(
    place: Place, browser: Browser, key: str | None, value: str | None
) -> None:
    astray = (place.producer.partition_of("a\nb") + 1) % 4
    headers = headers_for("orders", delay="2h", id="a\nb", partition=0)
    raw_key, raw_value = (None if each is None else each.encode() for each in (key, value))
    place.kafka.produce(TIMERS, raw_value, key=raw_key, headers=headers, partition=astray)
    place.run(300)
    fields = replacing(place, "a\nb")
    assert fields is not None
    assert browser.send("/timer/replace", {**fields, "delay": "soon"}).status == 400
    assert place.pages[0].get("/api/v1/overview")[1]["pending"] == 1, "nothing was ended"
    assert browser.send("/timer/replace", {**fields, "delay": "1h"}).status == 200
    place.run(3_700_000)
    assert [(entry.key, entry.value) for entry in place.kafka.read("orders")] == [(raw_key, raw_value)]
    assert place.pages[0].get("/api/v1/overview")[1]["pending"] == 0, "of one, one was made"


def test_a_message_that_a_form_would_change_or_whose_value_is_not_shown_is_not_editable(place: Place) -> None:
    place.producer.schedule("orders", b"a\r\nb", key=b"k", delay="2h", id="a").result(0)
    place.producer.schedule("orders", '{"a":[1]}', delay="2h", id="b").result(0)
    place.run(300)
    browser = Browser(place.pages[0].url)
    assert replacing(place, "a") is None
    assert "/api/v1/timer/replace" in browser.show("/timer?id=a&value=true").text
    assert replacing(place, "b", with_value=False) is None
    assert "show its value first" in browser.show("/timer?id=b").text
    text = browser.show("/timer?id=b&value=true").text.replace("&#34;", "&quot;")
    assert '<pre tabindex="0">' + escape('{\n  "a": [\n    1\n  ]\n}') + "</pre>" in text
    assert (replacing(place, "b") or {})["value"] == '{"a":[1]}', "as it was sent"


def test_the_history_of_an_id_is_that_of_its_receipts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    page, browser = place.pages[0], Browser(place.pages[0].url)
    first = place.producer.schedule("orders", "v", delay="2h", id="a").result(0)
    place.producer.schedule("orders", "v", delay="2h", id="ab").result(0)
    place.run(300)
    place.producer.move("a", delay="1h").result(0)
    place.run(3_700_000)
    again = place.producer.cancel("a").result(0)
    place.run(300)
    kinds = ["accepted", "moved", "delivered", "too-late"]
    assert "Show the receipts" in browser.show("/timer?id=a").text
    told = page.get("/api/v1/receipts?id=a")[1]
    assert ([each["kind"] for each in told["receipts"]], told["has_older"]) == (kinds, False)
    origin, request = ("/".join(map(str, each)) for each in (first, again))
    assert [each["kind"] for each in page.get(f"/api/v1/receipts?origin={origin}")[1]["receipts"]][:3] == kinds[:3]
    assert [each["kind"] for each in page.get(f"/api/v1/receipts?origin={request}")[1]["receipts"]] == kinds[3:]
    shown = browser.show("/timer?id=a&history=true")
    assert shown.status == 404, "nothing is pending any more"
    assert re.findall(r'data-label="Receipt">([^<]+)', shown.text) == kinds
    assert "No receipt names it" in browser.show("/timer?id=nobody&history=true").text
    monkeypatch.setattr("bridge.page.api.timer_requests._LATEST_RECEIPTS", 2)  # the commit's marker is the last
    told = page.get("/api/v1/receipts?id=a")[1]
    assert ([each["kind"] for each in told["receipts"]], told["has_older"]) == (kinds[-1:], True)
    assert "Only the latest receipts were read" in browser.show("/timer?id=a&history=true").text


def test_the_history_has_the_verdict_of_an_audit(tmp_path: Path) -> None:
    with Place(audit_tables=AuditTables(str(tmp_path))) as place:
        sent = place.producer.schedule("orders", "v", delay="2h", id="a").result(0)
        place.run(300)
        browser = Browser(place.pages[0].url)
        path = f"/timer?{urlencode({'id': 'a', 'history': 'true'})}"
        assert "Its tables cannot be read: " in browser.show(path).text
        origin = "/".join(map(str, sent))
        at = {"delivered_topic": HOSTILE, "delivered_partition": 1, "delivered_offset": 3, "delivered_ms": 0}
        row = {"origin": origin, "class": "duplicate", "faults": ["duplicate", "early"], "clock": "LogAppendTime", **at}
        (tmp_path / "requests").mkdir()
        pq.write_table(pa.Table.from_pylist([row], REQUESTS.arrow()), tmp_path / "requests" / "a.parquet")
        text = browser.show(path).text
        assert "duplicate <strong>duplicate, early</strong>" in text
        assert f"{escape(HOSTILE, quote=False)}/1/3".replace('"', "&#34;").replace("'", "&#39;") in text
        assert "1970-01-01T00:00:00.000Z</time> by LogAppendTime" in text
        other = f"/timer?{urlencode({'origin': 'timer.requests/0/77', 'history': 'true'})}"
        assert "No audit has judged it yet" in browser.show(other).text


def test_a_value_whose_registry_does_not_answer_is_shown_in_hex_and_replaced_as_it_is() -> None:
    with Place(registry=SchemaRegistry("http://127.0.0.1:1")) as place:
        place.producer.schedule("orders", b"\0\0\0\0\x07{}", delay="2h", id="a").result(0)
        place.producer.schedule("orders", "plain", delay="2h", id="b").result(0)
        place.run(300)
        browser = Browser(place.pages[0].url)
        text = browser.show("/timer?id=a&value=true").text
        assert "hex, as it could not be decoded: the schema registry gave no schema: " in text
        assert "00000000  00 00 00 00 07 7b 7d" in text
        assert '<pre tabindex="0">plain</pre>' in browser.show("/timer?id=b&value=true").text


def test_a_topic_is_paused_by_a_button(place: Place, browser: Browser) -> None:
    place.producer.schedule("orders", "v", delay="5s", id="a").result(0)
    place.run(300)
    other = place.pages[1]
    assert "1 are pending, the first due in 4 s" in browser.show("/").text
    assert "/topic/resume" not in browser.show("/").text
    done = browser.send("/topic/pause", {"topic": "orders", "form_key": browser.form_key("/")})
    assert says(done, 200, "1 request was sent")
    place.producer.pause("bills")
    place.run(10_000)
    assert place.kafka.read("orders") == []
    overview = browser.show("/").text
    assert overview.count(">paused<") == 2, "one of which nothing is pending"
    assert "<dt>Next due</dt><dd>none</dd>" in overview, "what waits is not due next"
    assert (overview.count('action="/topic/resume"'), overview.count('action="/topic/pause"')) == (2, 0), "by state"
    assert other.get("/api/v1/overview")[1]["paused_topics"] == ["bills", "orders"]
    assert len(other.post("/api/v1/topic/resume", {"topic": "orders"})[1]["sent"]) == 1
    place.run(1000)
    assert [entry.value for entry in place.kafka.read("orders")] == [b"v"]
    assert place.pages[0].get("/api/v1/overview")[1]["paused_topics"] == ["bills"]


def test_the_last_hour_is_drawn(place: Place, browser: Browser) -> None:
    for _ in range(3):
        place.producer.schedule("orders", "v", delay="1s")
    place.run(3000)
    text = browser.show("/").text
    assert re.search(r"<title>[\d-]+T\d\d:\d\dZ: p99 [\d,]+ ms, p50 [\d,]+ ms</title><rect", text)
    assert re.search(
        r'"In" class="number">3<.*"Timers" class="number">3<.*"Pending" class="number">0<.*≤ [\d,]+ ms<', text
    )
    for instance in place.instances:
        instance.status.traffic.sample_pending(lambda: 5, 3_700_000 + place.kafka.timeline.now_ms)
    place.run(3_700_000)
    assert [each["pending"] for each in place.pages[0].get("/api/v1/overview")[1]["hour"]] == [10], "of both"


def test_partitions_are_shown_with_lag_and_the_reason_of_a_pause(place: Place) -> None:
    partition = TimerPartition(TIMERS, 0)
    place.instances[0].status.pauses.pause(partition, "disk", "/data has 12 MB free")
    place.instances[0].metrics.lags_checked({partition: Lag(7, 0)}, {})
    owner = place.pages[0 if place.group.owner[partition] == "one" else 1]
    (shown,) = [each for each in owner.get("/api/v1/overview")[1]["partitions"] if each["partition"] == str(partition)]
    told = [shown[name] for name in ("phase", "reason", "detail", "lag")]
    assert told == ["paused", "disk", "/data has 12 MB free", 7]
    assert "disk: /data has 12 MB free" in Browser(place.pages[1].url).show("/").text
