"""Two bridges and their pages on a Kafka in memory, for tests: HTTP is real, on loopback; time passes when it is said.

with Place() as place:
    place.producer.schedule("orders", b"v", delay="1h", id="a")
    place.run(100)
    place.pages[0].get("/api/v1/timer?id=a")
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from email.message import Message
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware

from bridge.config.secret_file import digest_of
from bridge.errors import BridgeError
from bridge.loop.loop import Bridge
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.page.api.actions import Actions
from bridge.page.api.group_reads import GroupReads
from bridge.page.api.kafka import ConfluentKafkaPort, GroupView
from bridge.page.api.rejected import RejectedTopic
from bridge.page.api.routes import Api, api_routes
from bridge.page.api.timer_requests import RequestSender
from bridge.page.guard import KnownHosts
from bridge.page.lookups import AuditTables, SchemaRegistry
from bridge.page.peers import PeerNetworks, Peers
from bridge.page.server import LoopQueries, application, serving
from bridge.page.sessions import Authenticator, Token, TrustedProxy
from bridge.page.views import HtmlPages
from bridge.partition.options import StoreOptions, TurnOptions
from bridge.ports import Member
from bridge.probes import metrics_text
from bridge.query.query_queue import QueryQueue
from bridge.redrive.rules import Parked, RedriveFilter, RedrivePlan, TopicReader, marker_of, parked, request_of
from bridge.redrive.sender import RedriveResult
from bridge.testing import FakeHistory, FakeInstance
from bridge.testing.fake_kafka import FakeGroup, FakeKafka, Timeline, record_of
from kafka_timer import Headers, Sent, TimerOperator
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

T = TypeVar("T")

TIMERS = "timer.requests"
_OWN = ("timer.journal", "timer.rejected", "timer.receipts", "timer.resent")
PARTITIONS = 4
KEY = b"k" * 32
"""That of all instances."""
READER, OPERATOR = Token("rita", "read", digest_of("r" * 32)), Token("otto", "operate", digest_of("o" * 32))
RULES = Rules(
    max_delay_ms=10**9, roll_window_ms=200_000_000, own_topics=frozenset({TIMERS, *_OWN}), levels_ms=(1000, 5000)
)


class MemoryOutbox:
    """kafka_timer's Outbox, straight into a Kafka in memory."""

    is_broken = False

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> "Future[Sent]":
        future: Future[Sent] = Future()
        entry = self._kafka.produce(topic, value, key=key, headers=headers, partition=partition)
        logs = enumerate(self._kafka.topics[topic].partitions)
        number = next(number for number, log in logs if any(each is entry for each in log.everything()))
        future.set_result(Sent(topic, number, entry.offset))
        return future

    def partitions(self, topic: str) -> int:
        return len(self._kafka.topics[topic].partitions)

    def flush(self, timeout_s: float | None) -> None:
        """Nothing waits."""

    def close(self, timeout_s: float | None = None) -> None:
        """Nothing waits."""


class MemorySide(ConfluentKafkaPort):
    """Kafka in memory for one instance. `error`: what a lost broker is told by; `resends`: so many before it is.

    `silences`: what the next calls of `reader` come to.
    """

    def __init__(self, place: "Place") -> None:
        self._place = place
        self.error: BridgeError | None = None
        self.resends: int | None = None
        self.silences: list[BridgeError | None] = []

    def group(self) -> GroupView:
        if self.error is not None:
            raise self.error
        owner = self._place.group.owner
        return GroupView(
            frozenset(owner),
            [
                Member(
                    name, self._place.addresses.get(name, ""), frozenset(s for s, each in owner.items() if each == name)
                )
                for name in self._place.group.members
            ],
        )

    @contextmanager
    def reader(self) -> Iterator[TopicReader]:
        error = self.silences.pop(0) if self.silences else None
        if error is not None:
            raise error
        yield _Reader(self._place.kafka, self._place.group, "timer.journal")

    def producer(self, timer_topic: str) -> TimerOperator:
        return TimerOperator({}, timer_topic=timer_topic, outbox=MemoryOutbox(self._place.kafka))

    def redriven(self) -> frozenset[bytes]:
        return frozenset(entry.value or b"" for entry in self._place.kafka.read("timer.resent"))

    def redrive(
        self, places: Set[tuple[TimerPartition, int]], on_sent: Callable[[Sequence[Parked]], None]
    ) -> RedriveResult:
        kafka = self._place.kafka
        found = RedrivePlan(RedriveFilter(frozenset({TIMERS}), places=frozenset(places)), self.redriven())
        for place, offset in places:
            if place.partition < len(kafka.topics[place.topic].partitions):
                for entry in kafka.partition(place).committed(offset, offset + 1):
                    found.add(parked(place, record_of(entry), {TIMERS: RULES}))
        found.limit_to(None)
        for number, each in enumerate(found.selected):
            if number == self.resends:
                raise BridgeError("sending again broke off")
            (entry,) = kafka.partition(each.place).committed(each.offset, each.offset + 1)
            key, headers = request_of(record_of(entry), each.code)
            kafka.produce(
                each.partition.topic, entry.value, key=key, headers=headers, partition=each.partition.partition
            )
            kafka.produce("timer.resent", marker_of(each), key=f"redrive/{each.name}".encode())
            on_sent([each])
        return RedriveResult(len(found.selected))

    def close(self) -> None:
        """Nothing is open."""


class _Reader(FakeHistory):
    def partitions(self, topic: str) -> int | None:
        return len(self.kafka.topics[topic].partitions) if topic in self.kafka.topics else None


class Answer(NamedTuple):
    status: int
    text: str
    headers: Message


class Page:
    """HTTP client of one instance. It keeps its cookie and follows no redirect."""

    def __init__(self, url: str, secret: str | None = None) -> None:
        self.url = url
        self.cookie = ""
        self._secret = secret

    def holding(self, secret: str | None) -> "Page":
        """Return a client that sends this token."""
        return Page(self.url, secret)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        answer = self.ask("GET", path, None, **headers)
        return answer.status, json.loads(answer.text)

    def post(self, path: str, asked: Any, **headers: str) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"} | headers
        answer = self.ask("POST", path, json.dumps(asked).encode(), **headers)
        return answer.status, json.loads(answer.text)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        own = {"Cookie": self.cookie} | ({} if self._secret is None else {"Authorization": f"Bearer {self._secret}"})
        with closing(HTTPConnection(self.url.removeprefix("http://"), timeout=30)) as connection:
            connection.request(method, path, body, {**own, **headers})
            response = connection.getresponse()
            answer = Answer(response.status, response.read().decode(), response.headers)
        if given := answer.headers["Set-Cookie"]:
            self.cookie = given.partition(";")[0]
        return answer


class Served(QueryQueue):
    """A turn ends as soon as somebody asks. lock: held meanwhile."""

    def __init__(self, instance: FakeInstance, lock: AbstractContextManager[bool] | None = None) -> None:
        super().__init__()
        self._instance = instance
        self._lock = lock or threading.RLock()

    def submit(self, question: Callable[[Bridge], T]) -> "Future[T]":
        with self._lock:
            answer = super().submit(question)
            if self._instance.is_running:
                self.run_next(self._instance.bridge)
        return answer


class Place:
    """`tokens`: alike on both instances."""

    def __init__(
        self,
        tokens: Sequence[Token] = (),
        *,
        looked_at: int = 2000,
        registry: SchemaRegistry | None = None,
        audit_tables: AuditTables | None = None,
        proxy: TrustedProxy | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.kafka = FakeKafka(Timeline(1_700_000_000_000))
        for topic in (TIMERS, "timer.journal"):
            self.kafka.create(topic, PARTITIONS)
        for topic in (*_OWN[1:], "orders", "bills"):
            self.kafka.create(topic)
        timer_partitions = [TimerPartition(TIMERS, number) for number in range(PARTITIONS)]
        self.group = FakeGroup("timers", timer_partitions)
        options = TurnOptions(
            rules=RULES, store=StoreOptions(tick_ms=10_000, slots=1 << 17), receipts="all", max_wait_ms=1000
        )
        self.instances = [FakeInstance(self.kafka, self.group, options, name=name) for name in ("one", "two")]
        self.addresses: dict[str, str] = {}
        self.producer = TimerOperator({}, outbox=MemoryOutbox(self.kafka))
        self.sides: list[MemorySide] = []
        self.pages: list[Page] = []
        self._tokens = tokens
        self._looked_at = looked_at
        self._registry = registry
        self._audit_tables = audit_tables
        self._proxy = proxy
        self._served: list[ExitStack] = []

    def __enter__(self) -> Self:
        self.run(300)
        for instance in self.instances:
            self._serve(instance)
        return self

    def __exit__(self, *_: object) -> None:
        """Both at once, as each takes its time."""
        with ThreadPoolExecutor(len(self._served)) as pool:
            list(pool.map(ExitStack.close, self._served))

    def run(self, ms: int) -> None:
        """Both bridges turn until so much time has passed."""
        with self.lock:
            end_ms = self.kafka.timeline.now_ms + ms
            running = [instance for instance in self.instances if instance.is_running]
            for instance in running:
                self.kafka.timeline.at(end_ms, instance.bridge.wake)
            while self.kafka.timeline.now_ms < end_ms:
                for instance in running:
                    instance.turn()
            for instance in running * 3:
                instance.bridge.wake()
                instance.turn()
                pending = sum(instance.bridge.pending.values())
                instance.status.traffic.sample_pending(lambda pending=pending: pending, end_ms)  # type: ignore[misc]

    def _listening(self) -> tuple[str, Callable[[Starlette], AbstractContextManager[None]]]:
        """Return the address of the next instance, and what serves it."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        return f"127.0.0.1:{port}", partial(serving, "127.0.0.1", port)

    def _serve(self, instance: FakeInstance) -> None:
        address, serve = self._listening()
        side = MemorySide(self)
        query_queue = Served(instance, self.lock)
        access = Authenticator(self._tokens, lambda: self.kafka.timeline.now_ms / 1000, address, KEY, self._proxy)
        queries = LoopQueries(instance.status, query_queue, 1.0)
        peers = Peers(address, side, access, PeerNetworks(), timeout_s=10, cache_s=0)
        reads = GroupReads(queries, instance.clock, peers, Path(__file__).parent, "0")
        requests = RequestSender(side, "timer.receipts", "all", sleep=lambda _: self.run(50))
        actions = Actions(reads, requests, instance.clock, (TIMERS,))
        rejected = RejectedTopic(side, "timer.rejected", {TIMERS: RULES}, self._looked_at)
        api = Api(reads, requests, actions, rejected)
        site = HtmlPages(api, access, instance.clock.now_ms, self._registry, self._audit_tables)
        exposition = Exposition(instance.metrics, instance.status, AlertLimits("0", 1, 1000))
        metrics = metrics_text(exposition, query_queue, instance.clock)
        others = [api_routes(api, access, "0"), *site.routes()]
        hosts = Middleware(KnownHosts, any_address=not access.is_open)
        app = application(queries, instance.clock, metrics, access, hosts, others)
        self._served.append(ExitStack())
        self._served[-1].enter_context(serve(app))
        self.addresses[instance.name] = address
        self.sides.append(side)
        self.pages.append(Page(f"http://{address}"))


def http(body: str, status: str = "200 OK", more: str = "") -> bytes:
    """Return an HTTP response."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}".encode()


@contextmanager
def answering(answer: bytes, *, drips: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """Answer each connection on a port with these bytes. Yield host:port, and what was asked there.

    drips: True if the connection stays open.
    """
    asked: list[bytes] = []
    held: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            asked.append(caller.recv(65536))
            caller.sendall(answer)
            held.append(caller) if drips else caller.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(20)
    for each in held:
        each.close()
