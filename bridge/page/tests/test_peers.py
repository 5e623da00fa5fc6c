"""A broken or hostile group member: its partitions are missing, and the other instances are not affected."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from ipaddress import IPv4Network, IPv6Network, ip_network

import pytest

from bridge.config.settings import load
from bridge.page.api.kafka import GroupView
from bridge.page.api.requests import Read
from bridge.page.api.responses import GroupFound, GroupListing
from bridge.page.peers import PeerNetworks, Peers
from bridge.page.sessions import ANONYMOUS, Authenticator
from bridge.ports import Member
from bridge.query.search import NamedTimer
from bridge.tests.simulation.http_fakes import MemorySide, answering, http
from kafka_timer.origin import TimerPartition

OWN, ITS, THIRD = (TimerPartition("t", number) for number in range(3))
HERE = "127.0.0.1:1"
PATH = "/api/v1/timers"
NO_BRIDGE = "does not answer as a bridge of this version does"
PART = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"
PATHS = [f"127.0.0.1:1/{path}" for path in ("", "secret", "worker-1/x", "worker-0", "worker-100", "../worker-1")]
"""A member may choose no path but that of a worker."""


class Side(MemorySide):
    """A Kafka with the given members of the group."""

    def __init__(self, *members: Member) -> None:
        self._members = members

    def group(self) -> GroupView:
        return GroupView(frozenset({OWN, ITS}), self._members)


def peers_of(*members: Member, timeout_s: float = 20, peers: PeerNetworks | None = None) -> Peers:
    return Peers(HERE, Side(*members), Authenticator([], lambda: 0.0), peers or PeerNetworks(), timeout_s)


def listing_of(*timer_partitions: TimerPartition, rows: tuple[TimerPartition, ...] = ()) -> GroupListing:
    timer = NamedTimer(state="pending", shard="", origin=1, offset=1, topic="o", partition=None, due_ms=1, rolls=0)
    timers = [timer.model_copy(update={"shard": str(each)}) for each in rows]
    return GroupListing(at_ms=1, matching=len(rows), timers=timers, partitions=[*map(str, timer_partitions)])


def found_of(*timer_partitions: TimerPartition) -> GroupFound:
    listing = listing_of(*timer_partitions, rows=timer_partitions).model_dump(include={"timers", "partitions"})
    return GroupFound.model_validate({"at_ms": 1, **listing})


def asked_of(peers: Peers) -> tuple[list[GroupListing], dict[str, str]]:
    async def own() -> GroupListing:
        return listing_of(OWN)

    parts, missing = asyncio.run(_ask(peers, own))
    return parts, {each.partition: each.why for each in missing}


async def _ask(peers: Peers, own: Callable[[], Awaitable[GroupListing]], more_s: float = 0):  # type: ignore[no-untyped-def]
    return await peers.ask_all(ANONYMOUS, PATH, Read(), GroupListing, own, more_s)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        *((answer, NO_BRIDGE) for answer in (b"SSH-2.0-x\r\n\r\n", b"", http("{}"), PART)),
        (http("no", "500 Odd"), "answers 500"),
        (http("", "302 Found", "Location: http://127.0.0.1:1/secret\r\n"), "answers 302"),
        (http('{"reason": "busy"}', "503 Busy"), "busy"),
        (http('{"reason": "' + "x" * 10_000 + '"}', "503 Busy"), "x" * 500),
    ],
)
def test_a_peer_that_is_not_a_bridge_is_named_as_missing(answer: bytes, told: str) -> None:
    with answering(answer) as (address, _):
        parts, missing = asked_of(peers_of(Member("m", address, frozenset({ITS}))))
    assert [part.partitions for part in parts] == [["t/0"]]
    assert missing == {"t/1": f"{address}: {told}"}


@pytest.mark.parametrize(
    "address", ["nothing", "a:b", ":1", "127.0.0.1:0", "127.0.0.1:65536", "x" * 80 + ".a:1", *PATHS]
)
def test_a_peer_with_an_invalid_address_is_missing(address: str) -> None:
    _, missing = asked_of(peers_of(Member("m", address, frozenset({ITS}))))
    assert missing["t/1"].startswith(f"{address}: is not an address")


def networks(*texts: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(map(ip_network, texts))


@pytest.mark.parametrize(
    "peers",
    [
        PeerNetworks(is_loopback=False),
        PeerNetworks(networks("10.1.0.0/16", "fd00::/8")),
        PeerNetworks(networks("10.1.0.0/16"), is_loopback=False),
    ],
)
def test_a_member_that_announces_an_internal_address_makes_no_one_ask_there(peers: PeerNetworks) -> None:
    with answering(http("{}")) as (address, asked):
        port = address.partition(":")[2]
        for each in (address, f"localhost:{port}", f"[::ffff:127.0.0.1]:{port}"):
            _, missing = asked_of(peers_of(Member("m", each, frozenset({ITS})), peers=peers))
            assert "is not an address of an instance by peer_networks" in missing["t/1"], each
        assert asked == []


def test_only_addresses_that_an_instance_can_have_are_asked() -> None:
    anywhere, here = PeerNetworks(is_loopback=False), PeerNetworks()
    settings = load({"bootstrap_servers": "127.0.0.1:1", "peer_networks": "10.1.0.0/16, fd00::/8"}, {}, None)
    narrow = PeerNetworks(settings.peer_networks)
    for host in ("10.1.2.3", "fd00::1"):
        assert [each.allows(host) for each in (anywhere, here, narrow)] == [True, True, True], host
    for host in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"):
        assert [each.allows(host) for each in (anywhere, here, narrow)] == [False, False, False], host
    assert [each.allows("127.0.0.2") for each in (anywhere, here, narrow)] == [False, True, False]
    assert [each.allows("10.2.0.1") for each in (anywhere, narrow)] == [True, False]


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", http("{}")[:-1]])
def test_peers_that_answer_byte_by_byte_time_out_and_hold_no_thread(begin: bytes) -> None:
    async def history(addresses: list[str]) -> list[GroupListing]:
        async def own() -> GroupListing:
            await asyncio.to_thread(int)  # as a cancel is sent, while the others answer slowly
            return listing_of(OWN)

        members = [Member("m", address, frozenset({ITS})) for address in addresses]
        parts, missing = await _ask(peers_of(*members, timeout_s=0.1), own, more_s=0.1)
        assert [each.why for each in missing] == [
            f"{addresses[0]}: does not answer within 0.2 s: is its --advertised-http right?"
        ]
        return list(parts)

    with ExitStack() as ends:
        threads_by_default = 2 * ((os.cpu_count() or 1) + 4)
        addresses = [ends.enter_context(answering(begin, drips=True))[0] for _ in range(min(threads_by_default, 40))]
        assert len(asyncio.run(history(addresses))) == 1


def test_only_its_own_partitions_of_a_peers_answer_are_taken() -> None:
    with answering(http(listing_of(ITS, OWN, rows=(ITS, OWN)).model_dump_json())) as (address, _):
        parts, missing = asked_of(peers_of(Member("m", address, frozenset({ITS}))))
    assert [part.matching for part in parts] == [0]
    assert missing == {"t/1": f"{address}: answers for t/0, which the group has assigned to another: ask again"}
    with answering(http(found_of(ITS, OWN, THIRD).model_dump_json())) as (address, _):
        peers = peers_of(Member("m", address, frozenset({ITS})))

        async def own() -> GroupFound:
            return found_of()

        found, missing_ones = asyncio.run(peers.ask_all(ANONYMOUS, PATH, Read(), GroupFound, own))
    assert [[timer.shard for timer in part.timers] for part in found] == [[], ["t/1"]]
    assert [each.partition for each in missing_ones] == ["t/0"]


def test_two_members_with_one_address_are_asked_once() -> None:
    with answering(http(listing_of(ITS, THIRD).model_dump_json())) as (address, asked):
        members = (Member("m", address, frozenset({ITS})), Member("n", address, frozenset({THIRD})))
        parts, missing = asked_of(peers_of(*members))
    assert ([part.partitions for part in parts], missing, len(asked)) == ([["t/0"], ["t/1", "t/2"]], {}, 1)
