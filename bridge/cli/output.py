"""Print text from messages safely on a terminal."""

from rich.markup import escape


def escaped(text: str) -> str:
    """Escape control characters and rich markup."""
    return escape("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))
