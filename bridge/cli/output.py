"""What others wrote, on a terminal."""

from rich.markup import escape


def shown(text: str) -> str:
    """`text`, in which nothing commands the terminal, or rich, which lays it out."""
    return escape("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))
