"""Histories on the broker of the integration tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .history import History


@pytest.fixture
def make_history(kafka: Any, tmp_path: Path) -> Iterator[Callable[..., History]]:
    """Return a function that makes a history of (partitions of its timer topic, options of its bridges)."""
    made: list[History] = []

    def make(partitions: int, *options: str) -> History:
        made.append(History(kafka.bootstrap_servers, tmp_path, partitions, *options))
        return made[-1]

    yield make
    for history in made:
        history.close()
