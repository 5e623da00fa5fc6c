"""The HTTP server over a simulated bridge, on loopback."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from typer.testing import CliRunner

from bridge.cli.api_client import ApiClient
from bridge.cli.app import app
from bridge.config.http_address import known_names
from bridge.config.settings import load
from bridge.dev.embedded_kafka import free_port
from bridge.errors import BridgeError, SettingsError, exit_code_of
from bridge.loop.loop import Bridge
from bridge.loop.tests.test_histories import WINDOW_MS, World
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.page.guard import KnownHosts
from bridge.page.server import LoopQueries, application, serving
from bridge.page.sessions import Authenticator
from bridge.page.tests.test_api import says
from bridge.probes import metrics_text
from bridge.query.query_queue import BusyError, QueryQueue
from bridge.query.summary import Pending
from bridge.testing.timer_world import TIMERS, TimerWorld
from bridge.tests.simulation.http_fakes import Page, Served
from kafka_timer.origin import TimerPartition
from timer.errors import CorruptStoreError

T = TypeVar("T")
HOUR_MS = 3_600_000


def routes_of(
    world: TimerWorld, query_queue: QueryQueue, answer_timeout_s: float = 10, names: Sequence[str] = ()
) -> Starlette:
    status, clock = world.bridge.status, world.bridge.clock
    queries = LoopQueries(status, query_queue, answer_timeout_s)
    exposition = Exposition(world.bridge.metrics, status, AlertLimits("1.2.3", world.options.min_free_bytes, 1000))
    metrics = metrics_text(exposition, query_queue, clock)
    hosts = Middleware(KnownHosts, names)
    return application(queries, clock, metrics, Authenticator([], lambda: 0.0), hosts)


@contextmanager
def web_of(world: TimerWorld, query_queue: QueryQueue | None = None, **how: Any) -> Iterator[Page]:
    port = free_port()
    with serving("127.0.0.1", port, routes_of(world, query_queue or Served(world.bridge), **how)):
        yield Page(f"http://127.0.0.1:{port}")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def web(world: World) -> Iterator[Page]:
    with web_of(world) as found:
        yield found


def test_probes(world: World, web: Page) -> None:
    well = {"status": "ok", "shards": {"timer.requests/0": "running"}}
    assert web.get("/health/live") == (200, well)
    assert web.get("/health/ready") == (200, well)
    world.bridge.status.waiting_for_broker("committing: no broker")
    assert web.get("/health/live")[0] == 200
    reason = {"status": "not ok", "reason": "waiting for the broker", "detail": "committing: no broker"}
    assert web.get("/health/ready") == (503, well | reason)
    assert web.get("/nothing") == (404, {"reason": "Not Found"})


def test_every_path_checks_the_host_header(web: Page) -> None:
    for path in ("/health/live", "/health/ready", "/pending", "/pending?id=a", "/metrics", "/nothing"):
        for host in ("evil.example", "evil.example:8321", "localhost.a.example", "0.0.0.0", "127.0.0.1 x", "[::1", ""):
            assert web.get(path, Host=host)[0] == 403, (path, host)
    for host in ("127.0.0.1", "127.0.0.1:1", "LOCALHOST:8321", "[::1]:8321", "10.1.2.3:8321", "[fe80::1]"):
        assert web.get("/health/live", Host=host)[0] == 200, host
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), timeout=20) as probe:
        probe.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert probe.recv(100).startswith(b"HTTP/1.1 200"), "a probe may have none"


def test_names_in_http_hosts_and_the_advertised_one_are_known(world: World) -> None:
    given = {"bootstrap_servers": "127.0.0.1:1", "http_host": "b.example", "http_hosts": "*.Svc,bridge-?"}
    with web_of(world, names=known_names(load(given, {}, None))) as web:
        for host in ("a.svc", "bridge-1:8321", "b.example", socket.gethostname()):
            assert web.get("/health/live", Host=host)[0] == 200, host
        for host in ("svc", "bridge-10", "x.b.example"):
            assert web.get("/health/live", Host=host)[0] == 403, host


def test_case_34_pending_by_topic_with_first_last_and_histogram() -> None:
    world = TimerWorld("orders", "bills")

    def send(topic: bytes, due_ms: int) -> None:
        world.producer.produce(TIMERS, b"v", headers=[("timer-topic", topic), ("timer-deliver-ms", b"%d" % due_ms)])

    start_ms = world.now_ms // HOUR_MS * HOUR_MS + HOUR_MS
    for due_ms in (start_ms + 10, start_ms + 20, start_ms + 3 * HOUR_MS):
        send(b"orders", due_ms)
    send(b"bills", start_ms + 5)
    world.pass_time(ms=300)
    orders = {
        "pending": 3,
        "paused": 0,
        "first_due_ms": start_ms + 10,
        "last_due_ms": start_ms + 3 * HOUR_MS,
        "histogram": [{"from_ms": start_ms, "timers": 2}, {"from_ms": start_ms + 3 * HOUR_MS, "timers": 1}],
    }
    with web_of(world) as web:
        status, told = web.get("/pending")
        assert status == 200
        assert (told["at_ms"], told["pending"], told["shards"]) == (world.now_ms, 4, {"timer.requests/0": 4})
        assert told["topics"]["orders"] == orders
        assert told["topics"]["bills"]["pending"] == 1
        assert web.get("/pending?topic=orders")[1]["topics"] == {"orders": orders}
        assert web.get("/pending?topic=nobody")[1]["pending"] == 0
        day_ms = start_ms // (24 * HOUR_MS) * 24 * HOUR_MS
        buckets = web.get("/pending?topic=bills&bucket=1d")[1]["topics"]["bills"]["histogram"]
        assert buckets == [{"from_ms": day_ms, "timers": 1}]
        world.pass_time(ms=5 * HOUR_MS)
        assert web.get("/pending")[1]["pending"] == 0


def test_a_timer_is_found_by_its_id_in_each_state(world: World, web: Page) -> None:
    def told(id_: str) -> tuple[int, list[dict[str, Any]]]:
        status, answer = web.get(f"/pending?id={id_}")
        return status, answer["timers"]

    assert told("a") == (404, [])
    sent = world.send(delay_ms=3 * WINDOW_MS, id_="a")
    world.send(id_="other")
    world.bridge.run(10)
    due_ms = world.now_ms - 10 + 3 * WINDOW_MS
    status, (timer,) = told("a")
    assert status == 200
    place = {"shard": "timer.requests/0", "origin": sent.offset, "offset": sent.offset}
    target = {"topic": "orders", "partition": None, "due_ms": due_ms}
    assert timer == {"state": "pending", "is_paused": False, "rolls": 0, **place, **target}
    world.bridge.run(2 * WINDOW_MS)
    _, (rolled,) = told("a")
    assert (rolled["state"], rolled["origin"], rolled["due_ms"]) == ("pending", sent.offset, due_ms)
    assert rolled["rolls"] >= 1
    assert rolled["offset"] > sent.offset
    world.bridge.run(WINDOW_MS)
    assert told("a") == (404, [])


def test_a_recovering_partition_is_not_reported_as_empty(world: World, web: Page) -> None:
    """A sender that sees no pending timer would send the message again, and it would arrive twice."""
    world.send(delay_ms=500, id_="a")
    world.bridge.run(10)
    world.bridge.status.partition_recovering(TimerPartition("timer.requests", 3))
    for id_, code, timers in (("a", 200, 1), ("b", 503, 0)):
        status, told = web.get(f"/pending?id={id_}")
        assert (status, len(told["timers"]), told["recovering"]) == (code, timers, ["timer.requests/3"])
    assert web.get("/pending")[1]["recovering"] == ["timer.requests/3"]

    asked = ["--url", web.url]
    counted = CliRunner().invoke(app, ["pending", *asked])
    assert counted.exit_code == 0
    assert counted.stderr.startswith("note: timer.requests/3 could not be read, as not recovered yet")
    assert CliRunner().invoke(app, ["pending", *asked, "--id", "a"]).exit_code == 0
    ended = CliRunner().invoke(app, ["pending", *asked, "--id", "b"])
    assert str(ended.exception).startswith("nothing was found under 'b', but timer.requests/3 could not be read")


def test_an_id_between_two_turns_is_leaving_or_rolling(world: World, web: Page) -> None:
    world.bridge.sink.slow_turns = 1
    world.send(delay_ms=500, id_="leaves")
    world.send(delay_ms=3 * WINDOW_MS, id_="rolls")
    states: set[tuple[str, str]] = set()
    end_ms = world.now_ms + 4 * WINDOW_MS
    while world.now_ms < end_ms:
        world.bridge.turn()
        for id_ in ("leaves", "rolls"):
            states |= {(id_, timer["state"]) for timer in web.get(f"/pending?id={id_}")[1]["timers"]}
        world.kafka.timeline.advance(50)
    assert {("leaves", "pending"), ("leaves", "leaving"), ("rolls", "pending"), ("rolls", "rolling")} <= states


def test_a_loop_that_does_not_turn_fails_questions_alone_and_few_of_them_wait(world: World) -> None:
    query_queue = QueryQueue()
    with web_of(world, query_queue, answer_timeout_s=0.05) as web:
        assert web.get("/pending") == (503, {"reason": "the bridge is busy: ask again"})
        world.bridge.status.waiting_for_broker("no broker")
        assert web.get("/pending") == (503, {"reason": "waiting for the broker"})
        assert web.get("/health/live")[0] == 200
        asked: list[Bridge] = []
        query_queue.submit(asked.append)
        query_queue.run_next(world.bridge.bridge)
        assert asked == [world.bridge.bridge], "questions whose caller gave up are skipped"
        for _ in range(32):
            query_queue.submit(lambda _: None)
        with pytest.raises(BusyError):
            query_queue.submit(lambda _: None)
        assert web.get("/pending") == (503, {"reason": "too many requests at a time: ask again"})


def test_one_question_is_answered_after_each_turn_by_the_loops_thread(world: World) -> None:
    query_queue = QueryQueue()
    answers = [query_queue.submit(lambda _: threading.current_thread()) for _ in range(2)]
    given_up = query_queue.submit(lambda _: pytest.fail("nobody waits for this"))
    assert given_up.cancel()
    failing = query_queue.submit(lambda _: 1 // 0)
    query_queue.run_next(world.bridge.bridge)
    assert [answer.done() for answer in answers] == [True, False]
    query_queue.run_next(world.bridge.bridge)
    assert [answer.result(0) for answer in answers] == [threading.current_thread()] * 2
    query_queue.run_next(world.bridge.bridge)
    with pytest.raises(ZeroDivisionError):
        failing.result(0)
    with pytest.raises(CancelledError):
        given_up.result(0)
    query_queue.run_next(world.bridge.bridge)


def test_an_unreadable_store_is_reported_and_the_loop_goes_on(world: World) -> None:
    class Damaged(Served):
        def submit(self, question: Callable[[Bridge], T]) -> "Future[T]":
            def ask(_: Bridge) -> T:
                raise CorruptStoreError("body log at 7", "the checksum does not fit")

            return super().submit(ask)

    with web_of(world, Damaged(world.bridge)) as web:
        assert says(web.get("/pending?id=a"), 503, "body log at 7")


def test_metrics_are_served_while_the_loop_does_not_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.probes._METRICS_TIMEOUT_S", 0.05)

    def get(web: Page, accept: str = "text/plain") -> tuple[str, str]:
        answer = web.ask("GET", "/metrics", Accept=accept)
        return answer.headers["Content-Type"], answer.text

    world.send(delay_ms=500)
    world.bridge.run(10)
    with web_of(world) as web:
        kind, text = get(web)
        assert kind.startswith("text/plain; version=0.0.4")
        assert 'timer_bridge_pending_timers{target="orders"} 1.0' in text
        kind, text = get(web, "application/openmetrics-text; version=1.0.0")
        assert (kind.startswith("application/openmetrics-text"), text.endswith("# EOF\n")) == (True, True)
    with web_of(world, QueryQueue(), answer_timeout_s=0.05) as web:
        _, text = get(web)
        assert 'timer_bridge_requests_total{topic="timer.requests"} 1.0' in text
        assert "timer_bridge_pending_timers{" not in text, "nobody has looked yet"


def test_a_taken_port_is_reported_with_the_remedy(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        routes = routes_of(world, QueryQueue())
        with pytest.raises(SettingsError, match=f"http_port {port} on 127.0.0.1: .*another --http-port") as error:
            serving("127.0.0.1", port, routes).__enter__()
    assert exit_code_of(error.value) == 2
    with pytest.raises(SettingsError, match=r"http_host 192\.0\.2\.1: .*127\.0\.0\.1 or 0\.0\.0\.0"):
        serving("192.0.2.1", port, routes).__enter__()


def test_several_instances_are_joined() -> None:
    worlds = World(), World()
    for world in worlds:
        world.send(delay_ms=500, id_="a")
        world.bridge.run(10)
    with web_of(worlds[0]) as first, web_of(worlds[1]) as second:
        running = ["pending", "--json", "--url", first.url, "--url", f"{second.url}/"]
        told = Pending.model_validate_json(CliRunner().invoke(app, running).stdout)
        assert (told.pending, told.topics["orders"].pending) == (2, 2)
        assert [bucket.timers for bucket in told.histogram()] == [2]
        assert len(json.loads(CliRunner().invoke(app, [*running, "--id", "a"]).stdout)["timers"]) == 2
        with pytest.raises(BridgeError, match=f"{first.url}: bucket: "):
            ApiClient(first.url, "--http-port").get("/pending", {"bucket": "1m"}, Pending)
    with pytest.raises(BridgeError, match=r"Connection refused: is a bridge running there, with --http-port\?"):
        CliRunner().invoke(app, running, catch_exceptions=False)


def test_a_request_whose_length_is_given_twice_is_refused_and_nothing_after_it_is_read(web: Page) -> None:
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), 20) as sender:
        head = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
        sender.sendall(head + b"Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + head + b"\r\n")
        answers = b"".join(iter(lambda: sender.recv(65_536), b""))
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1") == 1
