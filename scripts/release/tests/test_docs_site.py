"""Links of the repository's pages, as the site has them."""

import pytest

from scripts.release.docs_site import with_site_links


@pytest.mark.parametrize(
    ("page", "written", "shown"),
    [
        ("faq.md", "[a](headers.md#ids)", "[a](headers.md#ids)"),
        ("faq.md", "[a](../ARCHITECTURE.md#invariants)", "[a](ARCHITECTURE.md#invariants)"),
        ("design/progress.md", "[a](../formats.md)", "[a](../formats.md)"),
        ("index.md", "[a](docs/page.md) ![b](docs/page.png)", "[a](page.md) ![b](page.png)"),
        ("ARCHITECTURE.md", "[a](docs/design/progress.md)", "[a](design/progress.md)"),
        ("SECURITY.md", "[a](README.md)", "[a](index.md)"),
        ("faq.md", "[a](#above) [b](https://example.org)", "[a](#above) [b](https://example.org)"),
        ("faq.md", "[`a`](../compose)", "`a`"),
        ("faq.md", "[a](not-there.md)", "[a](not-there.md)"),
    ],
)
def test_links_hold_on_the_site(page: str, written: str, shown: str) -> None:
    assert with_site_links(written, page) == shown
