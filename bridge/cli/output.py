"""Tables on a terminal. Text from messages is escaped: control characters and rich's markup."""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from rich.markup import escape
from rich.table import Table
from rich.text import Text


def visible(text: str) -> str:
    """Return the text with control characters escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def escaped(text: object) -> str:
    return escape(visible(str(text)))


def table(
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str | None = None,
    unbroken: Collection[str] = (),
) -> Table:
    """Return a table of escaped cells, unless they are Text. Columns without names have no heading.

    A column whose name begins with `>` is aligned to the right. unbroken: columns whose cells stay in one line.
    """
    made = Table(title=title and escaped(title), title_justify="left", show_header=any(columns))
    for name in columns:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        made.add_column(name.removeprefix(">"), justify=justify, no_wrap=name in unbroken, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else escaped(cell) for cell in row))
    return made
