"""Create the page and its API from the settings of a bridge. Other packages load this module by `extras.page()`."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

from starlette.routing import BaseRoute

from bridge.config.data_directory import worker_socket
from bridge.config.http_address import host_of, own_address
from bridge.config.settings import Settings, is_loopback
from bridge.observe.status import Status
from bridge.page.api.actions import Actions
from bridge.page.api.group_reads import GroupReads
from bridge.page.api.kafka import ConfluentKafkaPort
from bridge.page.api.rejected import RejectedTopic
from bridge.page.api.routes import Api, api_routes
from bridge.page.api.timer_requests import RequestSender
from bridge.page.guard import known_hosts
from bridge.page.lookups import AuditTables, SchemaRegistry
from bridge.page.peers import PeerNetworks, Peers
from bridge.page.reverse_proxy import ReverseProxy
from bridge.page.server import LoopQueries, application, serving, serving_worker
from bridge.page.sessions import Authenticator, access_of
from bridge.page.views import HtmlPages
from bridge.ports import Clock
from bridge.probes import MetricsText
from bridge.query.query_queue import QueryQueue


def check(settings: Settings) -> None:
    """Read the tokens. Raises SettingsError."""
    access_of(settings)


@contextmanager
def serving_bridge(
    settings: Settings, status: Status, queries: QueryQueue, clock: Clock, metrics: MetricsText, worker: int
) -> Iterator[None]:
    """Serve probes, metrics and pending timers, and the page if it is switched on. worker: see bridge.process."""
    # Tokens protect a question about an id also without a page.
    access = access_of(settings) if settings.page or settings.has_tokens else None
    with ExitStack() as ends:
        routes: list[BaseRoute] = []
        if settings.page:
            assert access is not None
            routes = ends.enter_context(_page_routes(settings, access, status, queries, clock))
        hosts = known_hosts(settings)
        app = application(status, queries, clock, metrics, extra_routes=routes, access=access, hosts=hosts)
        if worker:
            ends.enter_context(serving_worker(worker_socket(settings.data_dir), app))
        else:
            ends.enter_context(serving(settings.http_host, settings.http_port, app))
        yield


@contextmanager
def serving_workers(settings: Settings, sockets: Sequence[Path]) -> Iterator[None]:
    """Serve `http_port` for workers 1, 2, ..., which listen on `sockets`."""
    with serving(settings.http_host, settings.http_port, ReverseProxy(sockets).application(known_hosts(settings))):
        yield


def ready_partitions(sockets: Sequence[Path]) -> list[str] | None:
    """Return the partitions of all workers, None if one is not ready."""
    answer = asyncio.run(ReverseProxy(sockets).probe("/health/ready"))
    return None if "reason" in answer else sorted(answer["shards"])


@contextmanager
def _page_routes(
    settings: Settings, access: Authenticator, status: Status, queries: QueryQueue, clock: Clock
) -> Iterator[list[BaseRoute]]:
    """Yield the routes of the API and the page, which are served beside the probes."""
    kafka = ConfluentKafkaPort(settings)
    address = own_address(settings)
    installed = version("kafka-timer-bridge")
    networks = PeerNetworks(settings.peer_networks, is_loopback(host_of(address)))
    peers = Peers(address, kafka, access, networks)
    reads = GroupReads(status, LoopQueries(status, queries), clock, peers, settings.data_dir, installed)
    requests = RequestSender(kafka, settings.receipts_topic, settings.receipts)
    actions = Actions(reads, requests, clock, tuple(settings.timer_topics()))
    rejected = RejectedTopic(kafka, settings.rejected_topic, settings.rules())
    api = Api(reads, requests, actions, rejected)
    try:
        tables = None if settings.audit_tables is None else AuditTables(settings.audit_tables)
        registry = None
        if settings.schema_registry is not None:
            registry = SchemaRegistry(settings.schema_registry, settings.schema_registry_auth)
        pages = HtmlPages(api, access, clock.now_ms, registry, tables)
        yield [api_routes(api, access, installed), *pages.routes()]
    finally:
        kafka.close()
