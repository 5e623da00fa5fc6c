"""Create the page and its API from the settings of a bridge. Other packages load this module by `extras.page()`."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
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


@contextmanager
def serving_bridge(
    settings: Settings, status: Status, queries: QueryQueue, clock: Clock, metrics: MetricsText, worker: int
) -> Iterator[None]:
    """Serve probes, metrics and pending timers, and the page if it is switched on. worker: see bridge.process."""
    # Tokens protect a question about an id also without a page.
    needs_access = settings.page or settings.has_tokens  # else `page_secret` is not read
    access = access_of(settings) if needs_access else Authenticator((), time.time)
    loop_queries = LoopQueries(status, queries)
    with ExitStack() as ends:
        routes: list[BaseRoute] = []
        if settings.page:
            kafka = ends.enter_context(closing(ConfluentKafkaPort(settings)))
            routes = _page_routes(settings, kafka, access, loop_queries, clock)
        app = application(loop_queries, clock, metrics, access, known_hosts(settings), routes)
        if worker:
            ends.enter_context(serving_worker(worker_socket(settings.data_dir), app))
        else:
            ends.enter_context(serving(settings.http_host, settings.http_port, app))
        yield


def serving_workers(settings: Settings, sockets: Sequence[Path]) -> AbstractContextManager[None]:
    """Serve `http_port` for workers 1, 2, ..., which listen on `sockets`."""
    return serving(settings.http_host, settings.http_port, ReverseProxy(sockets).application(known_hosts(settings)))


def ready_partitions(sockets: Sequence[Path]) -> list[str] | None:
    """Return the partitions of all workers, None if one is not ready."""
    answer = asyncio.run(ReverseProxy(sockets).probe("/health/ready"))
    return None if "reason" in answer else sorted(answer["shards"])


def _page_routes(
    settings: Settings, kafka: ConfluentKafkaPort, access: Authenticator, queries: LoopQueries, clock: Clock
) -> list[BaseRoute]:
    """Return the routes of the API and the page, which are served beside the probes."""
    address, installed = own_address(settings), version("kafka-timer-bridge")
    networks = PeerNetworks(settings.peer_networks, is_loopback(host_of(address)))
    peers = Peers(address, kafka, access, networks)
    reads = GroupReads(queries, clock, peers, settings.data_dir, installed)
    requests = RequestSender(kafka, settings.receipts_topic, settings.receipts)
    actions = Actions(reads, requests, clock, tuple(settings.timer_topics()))
    api = Api(reads, requests, actions, RejectedTopic(kafka, settings.rejected_topic, settings.rules()))
    registry, tables = settings.schema_registry, settings.audit_tables
    values = None if registry is None else SchemaRegistry(registry, settings.schema_registry_auth)
    pages = HtmlPages(api, access, clock.now_ms, values, None if tables is None else AuditTables(tables))
    return [api_routes(api, access, installed), *pages.routes()]
