"""Idle and slow connections over real sockets, in a process with few file handles."""

import asyncio
import itertools
import logging
import resource
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bridge.dev.embedded_kafka import free_port
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.page import server as connections
from bridge.page.server import HttpConnection, log_loop_error, serving

HALF = b"GET / HTTP/1.1\r\nHost: a\r\n"
NEVER_DONE = b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n"


HASTY = {"request_s": 0.1, "answer_s": 0.1}
FEW = {"max_connections": 3}


async def _well(request: Request) -> Response:
    return PlainTextResponse(b"well" + await request.body())


async def _never(_: Request) -> Response:
    async def told() -> AsyncIterator[bytes]:
        yield b"begins"
        await asyncio.Event().wait()

    return StreamingResponse(told())


ROUTES = Starlette(routes=[Route("/", _well, methods=["GET", "POST"]), Route("/never", _never)])


@contextmanager
def served(limits: Mapping[str, float] = MappingProxyType({})) -> Iterator[int]:
    port = free_port()
    with pytest.MonkeyPatch.context() as meanwhile, serving("127.0.0.1", port, ROUTES):
        for name, limit in limits.items():
            meanwhile.setattr(HttpConnection, name, limit)
        yield port


def connected(ends: ExitStack, port: int, sent: bytes) -> socket.socket:
    found = ends.enter_context(socket.create_connection(("127.0.0.1", port), 20))
    found.sendall(sent)
    return found


def is_ended(connection: socket.socket) -> bool:
    """Wait for the response."""
    try:
        while connection.recv(4096):
            """Read on."""
    except ConnectionResetError:
        return True
    return True


def asking_without_end(ends: ExitStack, port: int) -> socket.socket:
    found = connected(ends, port, NEVER_DONE)
    read_until(found, b"begins")
    return found


def read_until(connection: socket.socket, text: bytes) -> None:
    told = b""
    while text not in told:
        part = connection.recv(4096)
        assert part, f"ended after {told!r}"
        told += part


def well(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
        return bool(answer.read() == b"well")


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Let the process open at most `count` files more."""
    taken = {int(path.name) for path in Path("/dev/fd").iterdir()}
    free = (number for number in itertools.count() if number not in taken)
    limit = next(itertools.islice(free, count, None))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.thorough
def test_half_sent_requests_leave_file_handles_to_the_bridge_and_probes_are_answered() -> None:
    with served() as port, ExitStack() as ends:
        count = 3 * HttpConnection.max_connections
        with files_left(count + 2 * HttpConnection.max_connections):  # our own ends are in this process too
            for _ in range(count):
                connected(ends, port, HALF)
            assert well(port)
            with open("/dev/null", "rb"):
                """Check that a file can be opened."""


def test_the_one_that_waits_longest_goes_and_never_one_that_is_answered() -> None:
    with served(FEW) as port, ExitStack() as ends:
        answered = asking_without_end(ends, port)
        assert well(port)
        first = connected(ends, port, HALF)
        second = connected(ends, port, HALF)
        third = connected(ends, port, HALF)
        assert is_ended(first)
        second.sendall(b"\r\n")
        assert second.recv(8) == b"HTTP/1.1"
        third.sendall(b"\r\n")
        assert third.recv(8) == b"HTTP/1.1"
        for _ in range(2):
            asking_without_end(ends, port)
        assert is_ended(connected(ends, port, b""))
        answered.settimeout(0)
        with pytest.raises(BlockingIOError):
            answered.recv(4096)


def test_one_that_was_answered_waits_since_then() -> None:
    with served(FEW) as port, ExitStack() as ends:
        answered = connected(ends, port, HALF + b"\r\n")
        read_until(answered, b"well")
        others = [connected(ends, port, HALF) for _ in range(3)]
        assert is_ended(answered)
        for each in others:
            each.sendall(b"\r\n")
            assert each.recv(8) == b"HTTP/1.1"


@pytest.mark.parametrize("sent", [b"", HALF, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12", NEVER_DONE])
def test_an_incomplete_or_unanswered_request_is_closed_in_time(sent: bytes) -> None:
    with served(HASTY) as port, ExitStack() as ends:
        assert is_ended(connected(ends, port, sent))


def test_a_connection_that_asks_again_is_answered_again() -> None:
    with served(FEW) as port, ExitStack() as ends:
        connection = connected(ends, port, b"")
        for _ in range(3):
            connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n12")
            read_until(connection, b"well12")


@pytest.mark.thorough
def test_a_lack_of_file_handles_is_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_warnings", LogRateLimit(connections.log))
    with caplog.at_level(logging.WARNING), served() as port, ExitStack() as ends, ExitStack() as held:
        assert well(port)
        callers = [ends.enter_context(socket.socket()) for _ in range(40)]
        with files_left(0):
            while True:
                try:
                    held.enter_context(open("/dev/null", "rb"))
                except OSError:
                    break
            for caller in callers:
                caller.setblocking(False)
                caller.connect_ex(("127.0.0.1", port))
            while not caplog.records:
                """Check that the first line arrives at once."""
            assert len(caplog.records) == 1
        held.close()
        assert well(port), "and it goes on"
    (line,) = [record for record in caplog.records if "accept" in record.getMessage()]
    assert line.exc_info is None


def test_other_errors_of_the_event_loop_are_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        log_loop_error(runner.get_loop(), {"message": "odd", "exception": ValueError("x")})
    assert "odd" in caplog.text
