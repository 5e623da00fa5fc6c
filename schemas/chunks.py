"""Records in chunks that fit into one transaction or batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(
    records: Iterable[T], size_of: Callable[[T], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[T]]:
    """Cut into chunks of at most `most` records and `most_bytes`; a larger record is a chunk of its own."""
    chunk: list[T] = []
    room = most_bytes
    for record in records:
        size = size_of(record)
        if chunk and (len(chunk) == most or size > room):
            yield chunk
            chunk, room = [], most_bytes
        chunk.append(record)
        room -= size
    if chunk:
        yield chunk
