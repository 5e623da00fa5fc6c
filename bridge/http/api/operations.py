"""The operations of /api/v1: reads of the whole group, and actions through the timer topic. The page uses the same.

Api.operations is the table; routes.routes() makes HTTP routes of it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

from pydantic import BaseModel
from starlette.exceptions import HTTPException

from bridge.client import Sent, TimerProducer
from bridge.http.api.actions import ACTIONS, SELECTION_ACTIONS, Action, has_id
from bridge.http.api.host_stats import disk_of, resident_bytes
from bridge.http.api.operation import API, Operation
from bridge.http.api.rejected import RejectedTopic
from bridge.http.api.requests import (
    ActionAsked,
    NoParameters,
    PendingAsked,
    Read,
    RedriveAsked,
    RejectedAsked,
    SelectionActed,
    SelectionAsked,
    TimerAsked,
    TimersAsked,
)
from bridge.http.api.responses import (
    Acted,
    ActedOnSelection,
    Counted,
    GroupFound,
    GroupListing,
    GroupPending,
    Instance,
    Overview,
    Owned,
    PartitionState,
    Redriven,
    RejectedRecords,
)
from bridge.http.api.selection_token import digest_of_timer, digests_in, token_of
from bridge.http.api.timer_requests import RequestSender, SendResult
from bridge.http.async_queries import LoopQueries, deadline
from bridge.http.auth import audit_log as audit
from bridge.http.auth.sessions import Caller
from bridge.http.peers import Peers
from bridge.loop.loop import Bridge
from bridge.observe.recent_traffic import joined_traffic
from bridge.observe.status import Status
from bridge.ports import Clock
from bridge.query.details import OriginSearch, find_by_id
from bridge.query.search import NamedTimer, Search, merge_listings
from bridge.query.summary import Pending, merge_pending, pending_in_bridge

SendRequests: TypeAlias = Callable[[TimerProducer], "Iterable[Future[Sent]]"]

MAX_PER_SELECTION = 20_000
"""Timers of one count and of one action on it; the others are left for the next one."""
_FIRST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The dependencies of the API."""

    status: Status
    queries: LoopQueries
    clock: Clock
    peers: Peers
    requests: RequestSender
    rejected: RejectedTopic
    data_dir: Path
    timer_topics: tuple[str, ...]
    """The setting `timer_topic` first."""
    version: str


class Api:
    """Each public method is an operation. It raises HTTPException, BridgeError (503) or ValueError (400)."""

    def __init__(self, parts: ApiContext) -> None:
        self._context = parts
        self._status, self._queries, self._clock = parts.status, parts.queries, parts.clock
        self._peers = parts.peers
        self.operations = self._reads() + self._changes()

    def _reads(self) -> list[Operation]:
        return [
            _operation(self.overview, "Partitions and owners, lateness and throughput now, disk and memory."),
            _operation(self.instance, "The asked instance alone."),
            _operation(self.pending, "Counts by real topic, next due, how many are due when."),
            _operation(self.timers, "Pending timers in due order, page by page."),
            _operation(
                self.timer,
                "What is pending under an id, or came by the request at a place.",
                refusals={"404": "All instances have answered, and nothing is pending under it."},
                is_empty=lambda found: not (found.timers or found.missing or found.is_local),
            ),
            _operation(self.rejected, "Rejected records with their reason, the latest first."),
        ]

    def _changes(self) -> list[Operation]:
        return [
            *(self._action_operation(action) for action in ACTIONS.values()),
            _operation(self.count, "How many a selection comes to, before it is acted on.", "POST", "selection/"),
            *(self._selection_operation(action) for action in SELECTION_ACTIONS),
            _operation(self.redrive, "Send rejected records again, each once.", "POST", "rejected/", role="operate"),
        ]

    # -- reads

    async def overview(self, caller: Caller, _: NoParameters) -> Overview:
        instances, missing = await self._peers.ask_all(caller, f"{API}/instance", Read(), Instance, self._instance)
        traffic = joined_traffic(each.traffic for each in instances)
        owned = [
            Owned(partition=name, owner=each.address, **state.model_dump())
            for each in instances
            for name, state in each.partitions.items()
        ]
        return Overview(
            at_ms=self._clock.now_ms(),
            pending=sum(each.pending or 0 for each in owned),
            late_p50_ms=traffic.lateness_ms(0.5),
            late_p99_ms=traffic.lateness_ms(0.99),
            in_per_s=traffic.in_per_s,
            out_per_s=traffic.out_per_s,
            partitions=sorted(owned, key=lambda each: _by_partition(each.partition)),
            paused_topics=sorted({topic for each in instances for topic in each.paused_topics}),
            unavailable_topics=_earliest(each.unavailable_topics for each in instances),
            instances=sorted(instances, key=lambda each: each.address),
            missing=missing,
        )

    async def instance(self, _: Caller, __: Read) -> Instance:
        return await self._instance()

    async def _instance(self) -> Instance:
        """Return the state of this instance, also while its loop waits for a broker."""
        counts: dict[str, int] = {}
        paused: set[str] = set()
        with suppress(HTTPException):
            pending, paused = await self._queries.ask(lambda bridge: (bridge.pending, _paused(bridge)))
            counts = {str(shard): count for shard, count in pending.items()}
        now_ms = self._clock.now_ms()
        return Instance(
            address=self._peers.address,
            version=self._context.version,
            at_ms=now_ms,
            not_ready=self._status.ready().reason,
            partitions={
                str(shard): PartitionState(phase=each.phase, reason=each.reason, pending=counts.get(str(shard)))
                for shard, each in sorted(self._status.shards().items())
            },
            paused_topics=sorted(paused),
            unavailable_topics=dict(self._status.unavailable_targets),
            traffic=self._status.traffic.recent(now_ms),
            disk=await asyncio.to_thread(disk_of, self._context.data_dir),
            resident_bytes=resident_bytes(),
        )

    async def pending(self, caller: Caller, asked: PendingAsked) -> GroupPending:
        async def own() -> Pending:
            now_ms = self._clock.now_ms()
            return await self._queries.ask(
                lambda bridge: pending_in_bridge(bridge, now_ms, asked.bucket, asked.topic, deadline())
            )

        parts, missing = await self._peers.ask_all(caller, f"{API}/pending", asked, Pending, own)
        whole = merge_pending(parts)
        next_due_ms = min((each.first_due_ms for each in whole.topics.values()), default=None)
        return GroupPending(**whole.model_dump(), next_due_ms=next_due_ms, missing=missing)

    async def timers(self, caller: Caller, asked: TimersAsked) -> GroupListing:
        async def own() -> GroupListing:
            filter_ = asked.filter_(limit=asked.limit, after=asked.after, bucket_ms=asked.bucket)
            search = Search(filter_)
            await self._queries.search(search, self._clock.now_ms)
            return GroupListing(**search.listing().model_dump(), partitions=[str(shard) for shard in search.shards])

        parts, missing = await self._peers.ask_all(caller, f"{API}/timers", asked, GroupListing, own)
        whole = merge_listings(parts, self._clock.now_ms(), asked.limit)
        partitions = [name for part in parts for name in part.partitions]
        return GroupListing(**whole.model_dump(), partitions=partitions, missing=missing)

    async def timer(self, caller: Caller, asked: TimerAsked) -> GroupFound:
        def find(bridge: Bridge) -> GroupFound:
            found = find_by_id(bridge, asked.raw(), self._clock.now_ms(), with_value=asked.value)
            return GroupFound(**found.model_dump(), partitions=[str(shard) for shard in bridge.shards])

        async def own() -> GroupFound:
            return await (self._queries.ask(find) if asked.origin is None else self._at_origin(asked))

        parts, missing = await self._peers.ask_all(caller, f"{API}/timer", asked, GroupFound, own)
        if asked.origin is not None:
            shard, _ = asked.place()
            missing = [each for each in missing if each.partition == str(shard)]
        timers = [timer for part in parts for timer in part.timers]
        partitions = [name for part in parts for name in part.partitions]
        if asked.value and not caller.is_from_peer:
            audit.log_action(caller, "read value", asked.named(), {"timers": len(timers)})
        return GroupFound(
            at_ms=self._clock.now_ms(), timers=timers, partitions=partitions, missing=missing, is_local=asked.local
        )

    async def _at_origin(self, asked: TimerAsked) -> GroupFound:
        shard, offset = asked.place()
        search = OriginSearch(shard, offset, with_value=asked.value)
        await self._queries.search(search, self._clock.now_ms)
        if search.found is None:
            return GroupFound(at_ms=self._clock.now_ms(), timers=[], partitions=[])
        return GroupFound(**search.found.model_dump(), partitions=[str(shard)])

    async def rejected(self, _: Caller, asked: RejectedAsked) -> RejectedRecords:
        return await asyncio.to_thread(self._context.rejected.latest, asked)

    # -- changes

    def _action_operation(self, action: Action) -> Operation:
        async def act(caller: Caller, asked: ActionAsked) -> Acted:
            with audit.logged_action(caller, action.name, asked.model_dump(exclude_none=True)) as results:
                topics = self._topics_for(action, asked.timer_topic)
                results["sent"] = []
                parts: list[tuple[str, SendRequests]] = [
                    (each, lambda timers: action.send(timers, asked)) for each in topics
                ]
                sent = await self._send(action, parts, results["sent"].append)
                acted = Acted(action=action.name, **sent._asdict())
                results.update(acted.model_dump(exclude={"action"}))
            return acted

        path = f"{API}/{action.about}/{action.name}"
        return Operation(action.name, "POST", path, action.summary, action.request_model, Acted, act, "operate")

    async def _send(
        self, action: Action, parts: list[tuple[str, SendRequests]], on_sent: Callable[[str], None]
    ) -> SendResult:
        """Send the requests, timer topic by timer topic."""
        whole = SendResult([], Counter(), 0)
        for topic, requests in parts:
            part = await asyncio.to_thread(
                self._context.requests.send, topic, requests, on_sent, has_receipts=action.has_receipts
            )
            whole = SendResult(
                whole.sent + part.sent, whole.outcomes + part.outcomes, whole.unanswered + part.unanswered
            )
        return whole

    def _topics_for(self, action: Action, named: str | None) -> tuple[str, ...]:
        topics = self._context.timer_topics
        if named not in (None, *topics):
            raise ValueError(f"{named} is no timer topic of this bridge: give one of {', '.join(topics)}")
        if named is not None:
            return (named,)
        return topics if action.about == "topic" else topics[:1]

    async def count(self, caller: Caller, asked: SelectionAsked) -> Counted:
        found = await self._selected(caller, asked)
        first = [
            timer.id or timer.id_base64 or f"{timer.shard}/{timer.origin}" for timer in found.timers[:_FIRST_SHOWN]
        ]
        return Counted(
            matching=found.matching,
            taken=len(found.timers),
            without_id=sum(not has_id(timer) for timer in found.timers),
            first=first,
            token=token_of(asked.selector, found.timers, self._clock.now_ms()),
            after=found.after,
            missing=found.missing,
        )

    async def _selected(self, caller: Caller, asked: SelectionAsked) -> GroupListing:
        filter_ = TimersAsked(**asked.selector.model_dump(), limit=MAX_PER_SELECTION, after=asked.after)
        return await self.timers(caller, filter_)

    def _selection_operation(self, action: Action) -> Operation:
        async def act(caller: Caller, asked: SelectionActed) -> ActedOnSelection:
            counted = digests_in(asked, self._clock.now_ms())
            with audit.logged_action(caller, f"{action.name} selection", _without_token(asked)) as results:
                found = await self._selected(caller, asked)
                chosen = _choose(action, found, counted)
                named = [timer for timer in chosen if action.can_name(timer)]
                parts = [(topic, _send_chosen(action, part, asked)) for topic, part in _by_topic(named).items()]
                results.update(ids=[timer.id or timer.id_base64 for timer in named], sent=[])
                sent = await self._send(action, parts, results["sent"].append)
                acted = ActedOnSelection(
                    action=action.name,
                    **sent._asdict(),
                    without_id=len(chosen) - len(named),
                    left=found.matching - len(chosen),
                )
                results.update(acted.model_dump(exclude={"action"}))
            return acted

        name, path = f"{action.name}_selection", f"{API}/selection/{action.name}"
        summary = f"{action.summary} For all timers of a selection that was counted."
        changed = {"409": "Partitions have not answered; or, for a move, some match that were not counted."}
        kinds = action.selection_model, ActedOnSelection
        return Operation(name, "POST", path, summary, *kinds, act, "operate", changed)

    async def redrive(self, caller: Caller, asked: RedriveAsked) -> Redriven:
        with audit.logged_action(caller, "redrive", asked.model_dump()) as results:
            results["sent_again"] = []
            redriven = await asyncio.to_thread(
                self._context.rejected.redrive, asked.records, results["sent_again"].append
            )
            results.update(redriven.model_dump())
        return redriven


def _operation(
    run: Callable[[Caller, Any], Awaitable[BaseModel]],
    summary: str,
    method: Literal["GET", "POST"] = "GET",
    below: str = "",
    **more: Any,
) -> Operation:
    """Return the table row of a method: its name, and its models from the type hints."""
    _, asked, answer = get_type_hints(run).values()
    return Operation(run.__name__, method, f"{API}/{below}{run.__name__}", summary, asked, answer, run, **more)


def _choose(action: Action, found: GroupListing, counted: Container[bytes]) -> list[NamedTimer]:
    """Return the timers that were counted. Raises ValueError, HTTPException if the action would miss timers."""
    _require_all_partitions(found)
    if action.still_matches and found.matching > MAX_PER_SELECTION:
        raise ValueError(f"{found.matching} match, {MAX_PER_SELECTION} go at a time: narrow the selector")
    chosen = [timer for timer in found.timers if digest_of_timer(timer) in counted]
    if action.still_matches and len(chosen) < len(found.timers):
        later = len(found.timers) - len(chosen)
        raise HTTPException(409, f"{later} match now that were not counted: nothing was sent, count again")
    return chosen


def _require_all_partitions(found: GroupListing) -> None:
    """Refuse if a partition has not answered: its timers would be left out unnoticed. Raises HTTPException."""
    if found.missing:
        names = ", ".join(each.partition for each in found.missing)
        why = found.missing[0].why
        raise HTTPException(409, f"nothing was sent, as partitions have not answered: {names}; {why}: try again")


def _without_token(asked: SelectionActed) -> dict[str, Any]:
    return asked.model_dump(exclude={"token"}, exclude_none=True)


def _by_topic(timers: list[NamedTimer]) -> dict[str, list[NamedTimer]]:
    """Group timers by timer topic."""
    found: dict[str, list[NamedTimer]] = {}
    for timer in timers:
        found.setdefault(timer.place.shard.topic, []).append(timer)
    return found


def _send_chosen(action: Action, chosen: list[NamedTimer], asked: SelectionActed) -> SendRequests:
    send_each = action.send_each
    assert send_each is not None
    return lambda timers: (future for timer in chosen for future in send_each(timers, timer, asked))


def _earliest(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the earliest time of each topic."""
    found: dict[str, int] = {}
    for part in parts:
        for topic, at_ms in part.items():
            found[topic] = min(at_ms, found.get(topic, at_ms))
    return dict(sorted(found.items()))


def _paused(bridge: Bridge) -> set[str]:
    return {wait.target for owned in bridge.shards.values() for wait in owned.store.waits if wait.is_paused}


def _by_partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)
