"""Hooks of mkdocs (`make docs`): pages of the repository's root become pages of the site, and links follow.

README.md -> index.md      ARCHITECTURE.md -> ARCHITECTURE.md      docs/page.md -> page.md
[x](../compose) -> x       a link to a file that is not a page of the site becomes its text
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
_SAME = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
ROOT_PAGES = {"README.md": "index.md", **{name: name for name in _SAME}}
SITE_PAGES = {site: source for source, site in ROOT_PAGES.items()}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)#]*)(?P<anchor>#[^)]*)?\)")


def on_files(files: Any, config: Any, **_: object) -> Any:
    for source, site in ROOT_PAGES.items():
        files.append(File.generated(config, site, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the page with links that hold on the site."""
    site = page.file.src_uri  # a path below docs/, or of ROOT_PAGES
    source_dir = posixpath.dirname(SITE_PAGES.get(site) or f"docs/{site}")

    def rewritten(link: re.Match[str]) -> str:
        target = link["target"]
        if not target or "://" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(source_dir, target))
        there = ROOT_PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if there is None or (ROOT / path).is_dir():
            return link["text"]
        to = posixpath.relpath(there, posixpath.dirname(site) or ".")
        return f"{link['image']}[{link['text']}]({to}{link['anchor'] or ''})"

    return _LINK.sub(rewritten, markdown)
