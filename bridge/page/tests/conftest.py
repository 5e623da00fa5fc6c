"""Two bridges and their pages on a Kafka in memory, without tokens and with them."""

from collections.abc import Iterator

import pytest

from bridge.tests.simulation.http_fakes import OPERATOR, READER, Place


@pytest.fixture
def place() -> Iterator[Place]:
    with Place() as made:
        yield made


@pytest.fixture
def guarded() -> Iterator[Place]:
    with Place([READER, OPERATOR]) as made:
        yield made
