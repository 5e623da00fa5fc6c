"""`make screenshots`: the pictures in docs/img, with the flights of the demo.

a day of flights in 20 s -> bridge -> audit -> its report -> audit.png
a day of flights in real time, pending          the page -> page.png, and the next hour in dark mode -> page-dark.png
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, free_port
from bridge.errors import SettingsError
from scripts.common import command
from scripts.common.kafka_io import Admin, now_ms, send_all
from scripts.common.processes import BridgeProcess
from scripts.demo.run import DEFAULT_DATE, TIMER_TOPIC, TOPICS, booked, stream
from spark_jobs import audit

FOLDER = Path(".run/screenshots-demo")
IMAGES = Path("docs/img")
COLOURS = 64
"""Colours of a PNG: the pages have few, and a palette makes the file a third of the size."""


def screenshots(console: Console) -> int:
    with command.fresh(FOLDER) as folder, EmbeddedKafka(folder / "kafka") as kafka:
        servers, port = kafka.bootstrap_servers, free_port()
        Admin(servers).create_topics(TOPICS, partitions=1)
        with BridgeProcess(folder, servers, ["--page"], http_port=port):
            stream(servers, booked(DEFAULT_DATE, 1, seconds=20), console)
            if code := audit.main(["--bootstrap-servers", servers, "--out", str(folder / "audit")]):
                return code
            begin_ms = now_ms() + 600_000
            send_all(servers, TIMER_TOPIC, (each.request(begin_ms) for each in booked(DEFAULT_DATE, 1, seconds=36_000)))
            page = f"http://{HOST}:{port}/"
            take("audit", (folder / "audit" / "report.html").resolve().as_uri())
            take("page", page)
            take("page-dark", f"{page}?span=hour", is_dark=True)
    return 0


def take(name: str, address: str, *, is_dark: bool = False) -> None:
    """Write a picture of the address to IMAGES. Raises SettingsError if there is no Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SettingsError("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark" if is_dark else "light")
        page.goto(address)
        path = IMAGES / f"{name}.png"
        page.screenshot(path=path)
        Image.open(path).quantize(COLOURS).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    sys.exit(command.run("screenshots", lambda: screenshots(Console())))
