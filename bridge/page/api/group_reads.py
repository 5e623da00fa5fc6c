"""Read from the whole group: our partitions through the loop's thread, others through their instances."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query
from starlette.exceptions import HTTPException

from bridge.config.data_directory import OF_WORKER
from bridge.loop.loop import Bridge
from bridge.observe.recent_traffic import Deliveries, joined_traffic, lateness_ms
from bridge.page import guard as audit
from bridge.page.api import responses
from bridge.page.api.requests import API, Named, PendingAsked, Read, TimerAsked, TimersAsked
from bridge.page.api.responses import GroupFound, GroupListing, GroupPending, Instance
from bridge.page.guard import Reader
from bridge.page.peers import Peers
from bridge.page.server import LoopQueries
from bridge.page.sessions import Caller
from bridge.ports import Clock
from bridge.probes import deadline
from bridge.query.search import Listing, Question, Search, find_timers, merge_listings
from bridge.query.summary import Pending, merge_pending, pending_in_bridge
from kafka_timer.origin import TimerPartition

Counts = Mapping[TimerPartition, int]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512
_LISTED_PER_S = 1000
"""Timers that an instance lists in a second, at least: a selection of 20,000 may take longer than other questions."""


def disk_of(folder: Path) -> responses.Disk:
    """Return the usage of `folder` and its disk; a file that is removed meanwhile does not count."""
    whole = shutil.disk_usage(folder)
    used = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(OF_WORKER)]  # others of our workers
        for name in names:
            with suppress(OSError):
                used += (Path(place) / name).stat().st_blocks * _BLOCK_BYTES
    return responses.Disk(used_bytes=used, free_bytes=whole.free, total_bytes=whole.total)


def resident_bytes() -> int | None:
    with suppress(OSError):  # no /proc
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    return None


@dataclass(frozen=True)
class GroupReads:
    """`data_dir` and `version` are those of this instance."""

    _queries: LoopQueries
    _clock: Clock
    _peers: Peers
    _data_dir: Path
    _version: str

    async def overview(self, caller: Reader, _: Annotated[Question, Query()]) -> responses.Overview:
        own = partial(self.instance, caller, Read())
        instances, missing = await self._peers.ask_all(caller, f"{API}/instance", Read(), Instance, own)
        traffic = joined_traffic(each.traffic for each in instances)
        late = traffic.late
        owned = [
            responses.Owned(partition=name, owner=each.address, **state.model_dump())
            for each in instances
            for name, state in each.partitions.items()
        ]
        unavailable = (pair for each in instances for pair in each.unavailable_topics.items())
        return responses.Overview(
            at_ms=self._clock.now_ms(),
            pending=sum(each.pending or 0 for each in owned),
            late_p50_ms=lateness_ms(late, 0.5),
            late_p99_ms=lateness_ms(late, 0.99),
            lateness=[_lateness_of(slot) for slot in traffic.slots],
            hour=[_lateness_of(minute) for minute in traffic.minutes],
            in_per_s=traffic.in_per_s,
            out_per_s=traffic.out_per_s,
            partitions=sorted(owned, key=lambda each: _by_partition(each.partition)),
            paused_topics=sorted({topic for each in instances for topic in each.paused_topics}),
            unavailable_topics=dict(sorted(unavailable, key=lambda pair: -pair[1])),  # the earliest of each
            instances=sorted(instances, key=lambda each: each.address),
            missing=missing,
        )

    async def instance(self, _: Reader, __: Annotated[Read, Query()]) -> Instance:
        def find(bridge: Bridge) -> tuple[Counts, Counts, set[str]]:
            queues = [owned.store.release_queue for owned in bridge.partitions.values()]
            return bridge.pending, bridge.lags, {target for queue in queues for target in queue.paused()}

        found: tuple[Counts, Counts, set[str]] = ({}, {}, set())
        with suppress(HTTPException):  # such as while the loop waits for a broker
            found = await self._queries.ask(find)
        pending, lags, paused = found
        now_ms = self._clock.now_ms()
        return Instance(
            address=self._peers.address,
            version=self._version,
            at_ms=now_ms,
            not_ready=self._queries.status.ready().reason,
            partitions={
                str(name): responses.PartitionState(**each._asdict(), lag=lags.get(name), pending=pending.get(name))
                for name, each in self._queries.status.partitions().items()
            },
            paused_topics=sorted(paused),
            unavailable_topics=dict(self._queries.status.unavailable_targets),
            traffic=self._queries.status.traffic.recent(now_ms),
            disk=await asyncio.to_thread(disk_of, self._data_dir),
            resident_bytes=resident_bytes(),
            standby_age_s={str(each): round(age_s, 1) for each, age_s in self._queries.status.standby_ages_s().items()},
        )

    async def pending(self, caller: Reader, asked: Annotated[PendingAsked, Query()]) -> GroupPending:
        def find(bridge: Bridge) -> Pending:
            return pending_in_bridge(bridge, self._clock.now_ms(), asked.bucket, asked.topic, deadline())

        own = partial(self._queries.ask, find)
        parts, missing = await self._peers.ask_all(caller, f"{API}/pending", asked, Pending, own)
        whole = merge_pending(parts)
        return GroupPending(**whole.model_dump(), next_due_ms=whole.next_due(), missing=missing)

    async def timers(self, caller: Reader, asked: Annotated[TimersAsked, Query()]) -> GroupListing:
        own = partial(self._queries.search, Search(asked), self._clock.now_ms)
        more_s = asked.limit / _LISTED_PER_S
        parts, missing = await self._peers.ask_all(caller, f"{API}/timers", asked, Listing, own, more_s)
        whole = merge_listings(parts, self._clock.now_ms(), asked.limit, is_latest_first=asked.order == "latest")
        if asked.content and not caller.is_from_peer:
            named = asked.model_dump(exclude_defaults=True)
            audit.log_action(caller, "read values", named, {"timers": len(whole.timers)})
        return GroupListing(**dict(whole), missing=missing)

    async def timer(self, caller: Caller, asked: TimerAsked) -> GroupFound:
        name = asked.name()
        place = None if isinstance(name, bytes) else TimerPartition(name.topic, name.partition)

        def find(bridge: Bridge) -> GroupFound:
            now_ms = self._clock.now_ms()
            timers = find_timers(bridge, name, now_ms, with_value=asked.value)
            partitions = [str(each) for each in bridge.partitions if place in (None, each)]
            return GroupFound(at_ms=now_ms, timers=timers, partitions=partitions)

        own = partial(self._queries.ask, find)
        parts, missing = await self._peers.ask_all(caller, f"{API}/timer", asked, GroupFound, own)
        missing = [each for each in missing if place is None or each.partition == str(place)]
        timers = [timer for part in parts for timer in part.timers]
        partitions = [name for part in parts for name in part.partitions]
        if asked.value and not caller.is_from_peer:
            named = asked.model_dump(include=set(Named.model_fields), exclude_none=True)
            audit.log_action(caller, "read value", named, {"timers": len(timers)})
        covered: dict[str, Any] = {"partitions": partitions, "missing": missing, "is_local": asked.local}
        return GroupFound(at_ms=self._clock.now_ms(), timers=timers, **covered)


def _lateness_of(slot: Deliveries) -> responses.Lateness:
    p50_ms, p99_ms = lateness_ms(slot.late, 0.5), lateness_ms(slot.late, 0.99)
    return responses.Lateness(**slot.model_dump(exclude={"late"}), p50_ms=p50_ms, p99_ms=p99_ms)


def _by_partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)
