"""A broker for all tests of the folder: KAFKA_BOOTSTRAP, or the one of `timer-bridge dev`."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from .console import Console, NoConsoleError, fetched
from .history import History
from .processes import Process, free_port


def unavailable(what: str) -> NoReturn:
    """Skip the test; in CI, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def black_box_servers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a broker that no test of this folder stops."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    folder, port = tmp_path_factory.mktemp("black-box"), free_port()
    arguments = ["dev", "--folder", str(folder / "kafka"), "--port", str(port)]
    # Runs in the project's folder, which has Kafka's jars.
    broker = Process(arguments, pytestconfig.rootpath, folder / "dev.log")
    try:
        broker.await_line(f"Kafka is ready at 127.0.0.1:{port}")
    except AssertionError as error:
        unavailable(f"no broker of `timer-bridge dev`: {error}")
    yield f"127.0.0.1:{port}"
    broker.end(signal.SIGINT)


@pytest.fixture
def make_history(black_box_servers: str, tmp_path: Path) -> Iterator[Callable[..., History]]:
    """Return a function that makes a history of (partitions of its timer topic, options of its bridges)."""
    made: list[History] = []

    def make(partitions: int, *options: str) -> History:
        made.append(History(black_box_servers, tmp_path, partitions, *options))
        return made[-1]

    yield make
    for history in made:
        history.close()


@pytest.fixture(scope="session")
def console(black_box_servers: str, pytestconfig: pytest.Config) -> Console:
    """Return Kafka's console clients, in Java."""
    try:
        jars = fetched(pytestconfig.rootpath / ".run")
    except NoConsoleError as error:
        unavailable(str(error))
    return Console(black_box_servers, jars)
