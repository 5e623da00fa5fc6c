"""Writes Markdown: tables, and pages from the templates of this folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def render(template: str, **values: object) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(  # nosec B701 - Markdown of our own figures, no HTML
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(template).render(values)
