"""axe-core, the accessibility checker, in the page that a browser shows."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"],
}


def violations(page: Page) -> list[str]:
    """Return the violations of WCAG 2.2 A and AA and of axe's best practices, with all details of the page opened."""
    for details in page.locator("details").all():
        details.evaluate("details => details.open = true")
    found = Axe().run(page, options=_RULES).response["violations"]
    return [f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]
