"""The audit's report in a browser: on a desk, on a phone and on paper, with the longest names that Kafka allows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page
from pyspark.sql import Row

from integration_tests.support.browser import chromium
from schemas.tables import HOURS, REQUESTS, AuditClass
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.report.report import render
from spark_jobs.report.summary import AuditVerdict, Bin, Details, LatenessSummary

pytestmark = pytest.mark.spark

AT_MS = 1_767_225_600_000
DAY_MS = 86_400_000
LONG = "x" * 249
TOPICS = ("orders", "payments.reminders.eu-central-1.v2", LONG)
LATE = LatenessSummary(-3, 4, 180_000, 86_400_000)
FAULTS = (AuditClass.MALFORMED_BUT_DELIVERED, AuditClass.DUPLICATE, AuditClass.MISSING)


def row(name: str, origin: str, n: int, **told: Any) -> Row:
    """Return the row of a delivery to one of TOPICS."""
    known: dict[str, Any] = {"class": name, "origin": f"{origin}{n}", "target": TOPICS[n % 3]}
    known |= {"delivered_topic": TOPICS[n % 3], "delivered_partition": 11, "delivered_offset": 9_876_543_210}
    known |= {"due_ms": AT_MS, "delivered_ms": AT_MS, "lateness_ms": DAY_MS}
    known |= {"copies": 0, "deliveries": 1, "rejections": 0, "faults": [], "altered": []}
    return Row(**dict.fromkeys(REQUESTS.arrow().names) | known | told)


def late(*values_ms: int) -> dict[str, int]:
    return dict(zip(("lateness_p50_ms", "lateness_p99_ms", "lateness_max_ms"), values_ms, strict=True))


def details() -> Details:
    of_fault = {"altered": ["value", "headers"], "deliveries": 2}
    faulty = tuple(
        row(name.value, "timer.requests/11/98765432", n, faults=[name.value, "altered"], **of_fault)
        for n, name in enumerate(FAULTS * 4)
    )
    lateness = {"lateness_min_ms": 0, "lateness_p50_ms": 3, "lateness_p99_ms": 40_000, "lateness_max_ms": 70_000}
    hour = {"deliveries": 1_234_567, "clock": "CreateTime, LogAppendTime", **lateness}
    hours = tuple(Row(**{**hour, "topic": TOPICS[n % 3], "hour_ms": AT_MS + n * 3_600_000}) for n in range(24))
    assert {*hours[0].asDict()} == {*HOURS.arrow().names}
    return Details(
        histogram=(Bin(None, 0, 3), Bin(0, 1, 88_000), Bin(1, 2, 1_400_000), Bin(3_600_000, None, 1)),
        timeline=tuple(
            Row(at_ms=AT_MS + n * 60_000, deliveries=900 + n, **late(3, 20 + n % 7, 400)) for n in range(200)
        ),
        timeline_width_ms=60_000,
        faults=faulty,
        latest=tuple(row("late", f"{LONG}/3/", n, released_ms=AT_MS) for n in range(20)),
        codes=(("bad-header", 12), ("unknown-topic", 3), (LONG, 1)),
        hours=hours,
        by_order=7,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    counts = {c.value: 0 for c in AuditClass} | {name.value: 4 for name in FAULTS} | {"delivered": 1_234_567}
    told = {"requests": 1_234_567, "faults": 4, "clock": "CreateTime, LogAppendTime"}
    told |= {name.replace("-", "_"): count for name, count in counts.items()}
    told |= {f"lateness_{name}": value for name, value in LATE._asdict().items()}
    topics = tuple(Row(**{**told, "topic": name}) for name in TOPICS)
    notes = (f"Requests name target topics that do not exist: {LONG}. They cannot be delivered.",)
    verdict = AuditVerdict(out, AT_MS, counts, LATE, topics, 1_000, 1_234_579, notes, ("Never read: 3 offsets.",))
    day = {"delivered": 40_000, "late": 0, "pending": 12}
    trend = [
        Row(
            day=f"2025-12-{n:02d}",
            as_of_ms=AT_MS - (32 - n) * DAY_MS,
            requests=40_000 + n,
            faults=n % 5 // 4,
            **day,
            **late(3, 15 + n, 900 * n),
        )
        for n in range(1, 31)
    ]
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=out, from_ms=AT_MS - DAY_MS)
    page = out / "report.html"
    page.write_text(render(verdict, details(), arguments, trend), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def opened(browser: Browser, report: Path, width: int, media: Literal["screen", "print"] = "screen") -> Page:
    """Open the report in a window of that width."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.emulate_media(media=media)
    page.goto(report.as_uri())
    return page


WIDER = """() => [...document.querySelectorAll("body *")]
    .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40)).slice(0, 5)"""


@pytest.mark.parametrize(("width", "media"), [(375, "screen"), (320, "screen"), (1100, "screen"), (688, "print")])
def test_nothing_is_wider_than_the_page(
    browser: Browser, report: Path, width: int, media: Literal["screen", "print"]
) -> None:
    """A phone, a small one, a desk, and A4 less its margins (182 mm at 96 dpi)."""
    page = opened(browser, report, width, media)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WIDER) == []


def test_a_wide_row_is_a_card_on_a_phone_and_each_cell_says_what_it_is(browser: Browser, report: Path) -> None:
    page = opened(browser, report, 375)
    page.get_by_role("heading", name="12 faults: 4 malformed-but-delivered").wait_for()
    assert page.locator("table.wide thead").first.is_hidden()
    label = "getComputedStyle(document.querySelector('.wide td'), '::before').content"
    assert page.evaluate(label) == '"class"'
    assert page.locator("svg").count() == 3
