"""The page of two running bridges, in a real browser, over a real Kafka."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, get, read
from integration_tests.support.browser import Visitor, chromium
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer import TimerProducer
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess

pytestmark = pytest.mark.broker

COUNT = 50_000
OPERATOR, READER = "o" * 32, "r" * 32
LONG = "order-" + "x" * 1000
"""As long as ids of other systems are: without spaces."""
BINARY, RIGHT_TO_LEFT = b"\xff\xfe\x00\x01" * 50, "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 " * 20
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e" + "w" * 200
HASH = f"sha256:{sha256(OPERATOR.encode()).hexdigest()}"
_AXE = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"],
}
_TOKENS = {"operators": f"otto:{HASH}\n", "readers": f"rita:{READER}\n", "secret": "s" * 64}


@dataclass
class Group:
    """Two bridges with three partitions."""

    names: Names
    ports: list[int]
    bridges: list[BridgeProcess]
    timers: TimerProducer
    folder: Path

    @property
    def nowhere(self) -> str:
        """A topic that is made later."""
        return f"nowhere-{self.names.target}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def has_all(self, number: int, pending: int = COUNT) -> bool:
        """Return True if the overview of this bridge shows this number of timers, and no partition is missing."""
        _, told = get(self.ports[number], "/api/v1/overview", token=OPERATOR)
        return bool(told) and told.get("pending") == pending and not told["missing"]

    def ask(self, number: int, path: str, asked: dict[str, Any] | None = None, secret: str = OPERATOR) -> Any:
        status, told = get(self.ports[number], f"/api/v1/{path}", token=secret, body=asked)
        assert status == 200, told
        return told


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def group(kafka: Broker, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder, names = tmp_path_factory.mktemp("page"), Names()
    for name, text in _TOKENS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    tokens = ["--page-operator-tokens", str(folder / "operators"), "--page-read-tokens", str(folder / "readers")]
    tokens += ["--page-secret", str(folder / "secret"), "--peer-networks", "127.0.0.1/32"]
    ports = [free_port(), free_port()]
    arguments = [*names.arguments, *tokens, "--page", "--min-free-bytes", "0", "--partitions", "3"]
    arguments += ["--resent-topic", f"resent-{names.target}"]
    bridges = [
        BridgeProcess(folder / str(port), kafka.bootstrap_servers, [*arguments, "--http-port", str(port)])
        for port in ports
    ]
    try:
        bridges[0].start()
        names.create_target(kafka)
        bridges[1].start()
        with TimerProducer({"bootstrap.servers": kafka.bootstrap_servers}, timer_topic=names.timers) as timers:
            made = Group(names, ports, bridges, timers, folder)
            fill(made)
            until(lambda: all(get(port, "/health/ready")[0] == 200 for port in ports), "two bridges that are ready")
            until(lambda: all(map(made.has_all, range(len(ports)))), "all timers in both overviews")
            yield made
    finally:
        for bridge in bridges:
            bridge.stop()


def fill(group: Group) -> None:
    target, timers = group.names.target, group.timers
    for number in range(COUNT - 12):
        timers.schedule(
            target, f"v{number}", key=f"k{number % 7}", delay=f"{7_200_000 + number * 10_000}ms", id=f"id-{number}"
        )
    for number in range(9):
        timers.schedule(target, "soon", key="eu-1", headers=[("tenant", "a")], delay="1h", id=f"eu-{number}")
    timers.schedule(target, HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE)], delay="90m", id=HOSTILE)
    timers.schedule(target, BINARY, key=BINARY, headers=[(LONG, BINARY)], delay="91m", id=LONG)
    timers.schedule(
        target, RIGHT_TO_LEFT, key=RIGHT_TO_LEFT, headers=[("h", RIGHT_TO_LEFT)], delay="92m", id=b"\xff" * 64
    )
    timers.schedule(group.nowhere, HOSTILE, delay="0", id=HOSTILE + "rejected")
    timers.schedule(target, "for the chart of lateness", delay="0")
    timers.flush()


@pytest.fixture
def visitor(browser: Browser, group: Group) -> Iterator[Callable[..., Visitor]]:
    """Return a function that makes visitors. At the end, fail on errors of their windows."""
    made: list[Visitor] = []

    def make(secret: str | None = OPERATOR, **how: Any) -> Visitor:
        made.append(Visitor(browser, group.url, **how))
        if secret is not None:
            made[-1].log_in(secret)
        return made[-1]

    yield make
    wrongs = [wrong for each in made for wrong in each.wrongs]
    for each in made:
        each.close()
    assert wrongs == []


def violations(page: Page) -> list[str]:
    """Return the violations of WCAG 2.2 A and AA and of axe's best practices, with all details of the page opened."""
    for details in page.locator("details").all():
        details.evaluate("details => details.open = true")
    found = Axe().run(page, options=_AXE).response["violations"]
    return [f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def test_each_bridge_shows_both_and_moves_timers_of_the_other(group: Group) -> None:
    addresses = {f"127.0.0.1:{port}" for port in group.ports}
    for number in range(2):
        overview = group.ask(number, "overview")
        assert {each["owner"] for each in overview["partitions"]} == addresses
        assert (overview["pending"], overview["missing"]) == (COUNT, [])
        assert get(group.ports[number], "/pending?id=id-1")[0] == 401
        assert "refused: no known token" in group.bridges[number].log_path.read_text()
        own = group.ask(number, "pending?local=true")
        assert 0 < own["pending"] < COUNT
        assert group.ask(number, "timers?limit=0", secret=READER)["matching"] == COUNT
        for each in range(4):
            id_ = f"c{number}{each}"
            group.timers.schedule(group.names.target, "v", delay="3h", id=id_).result(PATIENCE_S)
            told = group.ask(number, "timer/cancel", {"id": id_})
            assert (told["outcomes"], told["unanswered"]) == ({"cancelled": 1}, 0)


def test_the_overview_tells_what_is_pending_and_who_owns_what(group: Group, visitor: Callable[..., Visitor]) -> None:
    page = visitor().page
    expect(page.locator(".figures")).to_contain_text(f"Pending{COUNT:,}".replace("Pending", ""))
    for port in group.ports:
        expect(page.get_by_role("region", name="Partitions and owners")).to_contain_text(f"127.0.0.1:{port}")
    expect(page.get_by_role("region", name="Pending by topic")).to_contain_text(group.names.target)
    page.get_by_role("link", name="by the day").click()
    hour = page.get_by_role("region", name="Last hour, by the minute")
    hour.get_by_text("Last hour as a table").click()
    expect(hour.locator("td[data-label=Timers]").filter(has_text="1")).to_have_count(1)
    expect(hour.get_by_role("figure")).to_have_count(4)
    when = page.get_by_role("region", name="Due when")
    when.get_by_role("link", name="by the hour").click()
    when.locator("a:has(.hit)").nth(1).click()
    expect(page).to_have_url(re.compile("span=hour&from="))
    when.get_by_text("As a table").click()
    when.get_by_role("row").nth(1).get_by_role("link").press("Enter")
    expect(page).to_have_url(re.compile("/timers"))
    expect(page.get_by_role("main")).to_contain_text(group.names.target)


def test_an_operator_looks_up_cancels_and_replaces(group: Group, visitor: Callable[..., Visitor]) -> None:
    page = visitor().page
    page.get_by_role("searchbox").fill("id-7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="id-7")).to_be_visible()
    expect(page.get_by_role("article")).to_contain_text("timer-topic")
    page.get_by_role("link", name="Show the value").click()
    expect(page.locator("pre")).to_have_text("v7")
    page.get_by_text("Replace …").click()
    page.get_by_label("In", exact=True).fill("5h")
    page.get_by_role("button", name="Confirm: replace").click()
    expect(page.get_by_role("status")).to_contain_text("replaced")
    assert violations(page) == []
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_role("button", name="Confirm")).to_have_count(0)
    page.get_by_text("Cancel …").click()
    page.get_by_role("button", name="Confirm: cancel").click()
    expect(page.get_by_role("status")).to_contain_text("cancelled")
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_role("status")).to_contain_text("Nothing is pending under this id")
    page.get_by_role("link", name="Show the receipts").click()
    expect(page.locator("td[data-label=Receipt]")).to_have_text(["replaced", "cancelled"])
    assert violations(page) == []
    group.timers.schedule(group.names.target, "v7", key="k0", delay="7270s", id="id-7").result(PATIENCE_S)


def test_no_text_of_any_length_breaks_a_table_and_the_rows_shown_are_sorted(visitor: Callable[..., Visitor]) -> None:
    """One line in each row: ids of 1 KB, binary and right-to-left text. Sorted by a column."""
    page = visitor().page
    page.goto("/timers")
    rows = page.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    heads = page.locator("th:not(.tick)").evaluate_all("cells => cells.map((cell) => cell.offsetWidth)")
    assert (len(rows), max(rows) < 50, min(heads) > 60) == (100, True, True), (rows, heads)
    expect(page.locator("td [title*='\u05e9\u05dc\u05d5\u05dd']").first).to_be_visible()
    row = page.get_by_role("row").filter(has_text="order-xxx")
    copy = row.get_by_role("button", name="Copy order-xxx")
    copy.focus()
    page.keyboard.press("Enter")
    expect(copy).to_have_text("\u2713")
    keys = page.locator("td[data-label=Key]")
    head = page.get_by_role("columnheader", name="Key")
    for way in ("ascending", "descending"):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", way)
        shown = [text.removesuffix("⧉").strip() for text in keys.all_text_contents()]
        assert [key for key in shown if key[:1] == "k"] == sorted(
            (key for key in shown if key[:1] == "k"), reverse=way == "descending"
        )
        assert len(set(shown)) > 5
    assert violations(page) == []


def test_times_are_local_or_utc_and_picked_in_the_same_zone(visitor: Callable[..., Visitor]) -> None:
    page = visitor(READER, timezone="Asia/Kolkata").page
    page.goto("/timers?due_from=2030-01-01T00:00:00Z")
    expect(page.get_by_label("Due from")).to_have_value("2030-01-01T05:30")
    page.get_by_label("Due from").fill("2030-01-02T05:30")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("due_from=2030-01-02T00%3A00%3A00.000Z"))
    page.get_by_label("Time zone").select_option("UTC")
    expect(page.get_by_label("Due from")).to_have_value("2030-01-02T00:00")
    page.goto("/timer?id=id-1")
    due = page.locator("dd time").first
    expect(due).to_have_text(re.compile("Z$"))
    page.get_by_label("Time zone").select_option("local")
    expect(due).to_have_text(re.compile(r"\+05:30$"))


def test_rejected_records_are_sent_again_each_once(
    kafka: Broker, group: Group, visitor: Callable[..., Visitor]
) -> None:
    page = visitor().page
    Admin(kafka.bootstrap_servers).create_topics([group.nowhere], partitions=1, settings=BROKER_CLOCK)
    page.get_by_role("link", name="Rejected").click()
    page.get_by_label("Tick all rows").check()
    page.get_by_text("Send the ticked ones again …").click()
    page.get_by_role("button", name="Confirm: send them again").click()
    expect(page.get_by_role("heading", name="1 sent again")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="Back").click()
    expect(page.get_by_role("main")).to_contain_text("sent again")
    expect(page.locator("td [type=checkbox]")).to_have_count(0)
    (delivered,) = read(kafka, group.nowhere, 1)
    assert delivered.value() == HOSTILE.encode()
    (parked,) = [each["parked"] for each in group.ask(1, "rejected")["records"]]
    again = group.ask(1, "rejected/redrive", {"records": [parked]})
    assert again == {"sent": 0, "refused": {}, "not_sent": 1}


PAGES = (
    "/",
    "/?span=hour",
    "/?span=month",
    "/timers?limit=20",
    "/timers?order=latest&limit=20",
    f"/timers?{urlencode({'header': HOSTILE, 'topic': HOSTILE})}",
    "/timers?after=x",
    "/timer?id=id-1&value=true",
    f"/timer?{urlencode({'id': HOSTILE, 'value': 'true'})}",
    f"/timer?{urlencode({'id': LONG, 'value': 'true', 'history': 'true'})}",
    "/timer?id=nobody",
    "/outcomes",
    "/rejected",
    f"/rejected?{urlencode({'code': HOSTILE})}",
    "/rejected?record=timer.rejected/0/0",
    "/new",
)
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


@pytest.mark.parametrize(("dark", "width"), [(True, "desk"), (False, "phone")], ids=["dark", "phone"])
def test_each_page_fits_follows_dark_mode_is_text_alone_and_axe_finds_nothing(
    group: Group,
    visitor: Callable[..., Visitor],
    dark: bool,  # noqa: FBT001
    width: str,
) -> None:
    window = visitor(secret=None, dark=dark, width=width)
    page = window.page
    page.goto("/login")
    found = {"login": violations(page)}
    page.get_by_label("Token").fill("x")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").wait_for()
    found["wrong token"] = violations(page)
    page.get_by_label("Token").fill(OPERATOR)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    for path in PAGES:
        page.goto(path)
        assert not window.scrolls_sideways(), path
        assert page.locator("img, script:not([src='/static/page.js'])").count() == 0, path
        light, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in page.evaluate(COLOURS))
        assert (light < text) is dark, path
        found[path] = violations(page)
    page.goto("/timers?key=eu-")
    page.get_by_label("Act on").select_option("all that match")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("heading", name="Cancel: 9 timers match").wait_for()
    found["counted"] = violations(page)
    assert {name: each for name, each in found.items() if each} == {}
    log = "".join(path.read_text() for path in group.folder.glob("*/bridge.log"))
    assert all(told in log for told in ("did=login", "no session: unknown token"))
    assert not any(token in log for token in (OPERATOR, READER))
    page.evaluate("document.querySelector('h1').style = 'color: #888; background: #999'")
    page.evaluate("document.querySelector('nav').innerHTML = '<a href=/></a>'")
    assert {each.partition(":")[0] for each in violations(page)} == {"color-contrast", "link-name"}, "it does look"


def test_a_keyboard_is_enough(group: Group, visitor: Callable[..., Visitor]) -> None:
    group.timers.schedule(group.names.target, "v", delay="3h", id="keys").result(PATIENCE_S)
    page = visitor(secret=None).page
    page.goto("/login")
    keyboard = page.keyboard

    def tab_to(wanted: Locator) -> None:
        for _ in range(40):
            if wanted.first.evaluate("it => it === document.activeElement"):
                assert wanted.first.evaluate("it => it.matches(':focus-visible')")
                return
            keyboard.press("Tab")
        raise AssertionError(f"{wanted} is not reached")

    keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    tab_to(page.get_by_label("Token"))
    keyboard.type(OPERATOR)
    keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    tab_to(page.get_by_role("searchbox"))
    keyboard.type("keys")
    keyboard.press("Enter")
    page.get_by_role("heading", name="keys").wait_for()
    tab_to(page.get_by_text("Cancel …"))
    keyboard.press("Enter")
    tab_to(page.get_by_role("button", name="Confirm: cancel"))
    keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("cancelled")


def test_the_overview_refreshes_itself_until_it_is_paused_or_hidden(
    group: Group, visitor: Callable[..., Visitor]
) -> None:
    page = visitor(READER).page
    page.clock.install()
    page.goto("/")
    page.get_by_text("As a table", exact=True).evaluate("summary => summary.parentElement.open = true")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    group.timers.schedule(group.names.target, "v", delay="3h", id="live").result(PATIENCE_S)
    until(lambda: group.has_all(0, COUNT + 1), "one more timer")
    page.clock.run_for(5000)
    expect(page.locator(".figures")).to_contain_text(f"{COUNT + 1:,}")
    expect(page.get_by_role("columnheader", name="By topic")).to_be_visible()
    assert asked == [f"{group.url}/"], "no other file is loaded again"
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Pause refresh")).to_have_attribute("aria-pressed", "true")
    group.ask(0, "timer/cancel", {"id": "live"})
    page.clock.run_for(60_000)
    assert len(asked) == 1
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
    page.get_by_role("button", name="Pause refresh").click()
    page.clock.run_for(60_000)
    assert len(asked) == 1
    page.evaluate("document.hidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".figures")).to_contain_text(f"{COUNT:,}")
    page.route("**/*", lambda route: route.abort())
    page.clock.run_for(5000)
    expect(page.get_by_role("status")).to_contain_text("the figures are old")
    page.unroute("**/*")
    page.clock.run_for(5000)
    expect(page.get_by_role("status")).to_be_empty()
    page.route("**/*", lambda route: route.fulfill(body="<h1>Done</h1>", content_type="text/html"))
    page.clock.run_for(5000)  # as the page of an action's progress, when the action has ended
    expect(page.get_by_role("heading", name="Done")).to_be_visible()


def test_keys_open_pages_and_searches_and_can_be_turned_off(visitor: Callable[..., Visitor]) -> None:
    page = visitor(READER).page
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("2/1")
    expect(page.get_by_role("searchbox")).to_have_value("2/1")
    page.keyboard.press("Tab")
    page.keyboard.press("2")
    expect(page.get_by_role("heading", name="Timers")).to_be_visible()
    page.get_by_text("Keyboard").click()
    page.get_by_label("These keys work").uncheck()
    page.reload()
    page.keyboard.press("1")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).not_to_be_focused()
    expect(page.get_by_role("heading", name="Timers")).to_be_visible()
