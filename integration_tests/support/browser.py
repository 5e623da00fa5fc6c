"""Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from integration_tests.conftest import missing
from integration_tests.support.patience import PATIENCE_S

_QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
_QUIET += ["--disable-component-update", "--disable-sync"]
PHONE: ViewportSize = {"width": 390, "height": 844}
DESK: ViewportSize = {"width": 1100, "height": 900}


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        missing("no Chromium: apt-get install chromium")
    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_QUIET)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A window of its own, with cookies of its own; `wrongs`: scripts that ran or were stopped, errors of the page."""

    def __init__(
        self, browser: Browser, url: str, *, width: str = "desk", dark: bool = False, timezone: str | None = None
    ) -> None:
        self._context: BrowserContext = browser.new_context(
            base_url=url,
            viewport=PHONE if width == "phone" else DESK,
            color_scheme="dark" if dark else "light",
            timezone_id=timezone,
        )
        self._context.set_default_timeout(1000 * PATIENCE_S)
        self.page: Page = self._context.new_page()
        self.wrongs: list[str] = []
        self.page.on("dialog", self._dismiss)
        self.page.on("pageerror", lambda error: self.wrongs.append(f"error {error}"))
        self.page.on("console", self._hear)

    def log_in(self, secret: str) -> None:
        self.page.goto("/login")
        self.page.get_by_label("Token").fill(secret)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("heading", name="Overview").wait_for()

    def scrolls_sideways(self) -> bool:
        root = "document.documentElement"
        return bool(self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))

    def close(self) -> None:
        self._context.close()

    def _dismiss(self, dialog: Dialog) -> None:
        self.wrongs.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrongs.append(message.text)
