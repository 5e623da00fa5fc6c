"""Count the timers of a selection, then act on the counted ones and no other. A token lists them:

    1798142400123.9f86d081884c7d65.<8 bytes for each timer, base64>         time, selector, timers: 213 kB for 20,000

A timer is identified by partition, origin and due time, so one that was moved or replaced since is not in it. No state
is kept for a count: any instance accepts the token of any other.
"""

import asyncio
import base64
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from starlette.exceptions import HTTPException

from bridge.page import guard as audit
from bridge.page.api.actions import Action
from bridge.page.api.group_reads import GroupReads
from bridge.page.api.requests import SelectionActed, SelectionAsked, Selector, TimersAsked
from bridge.page.api.responses import ActedOnSelection, Counted, GroupListing
from bridge.page.api.timer_requests import RequestSender, SendProgress, SendRequests
from bridge.page.guard import Reader
from bridge.page.sessions import Caller
from bridge.ports import Clock
from bridge.query.search import NamedTimer
from kafka_timer import Sent, TimerOperator

GOOD_FOR_MS = 24 * 3_600_000
"""Counting millions of timers, part by part, takes hours before the first action."""
_DIGEST_BYTES = 8
MAX_PER_SELECTION = 20_000
"""Timers of one count and of one action on it; the others are left for the next one."""
_FIRST_SHOWN = 10


def token_of(selector: Selector, timers: Iterable[NamedTimer], now_ms: int) -> str:
    digests = b"".join(digest_of_timer(timer) for timer in timers)
    return f"{now_ms}.{selector.digest()}.{base64.urlsafe_b64encode(digests).decode()}"


def digests_in(asked: SelectionActed, now_ms: int) -> frozenset[bytes]:
    """Return the digests of the counted timers. Raises ValueError."""
    at_ms, _, rest = asked.token.partition(".")
    digest, _, text = rest.partition(".")
    if digest != asked.selector.digest() or not (at_ms.isdecimal() and at_ms.isascii()):
        raise ValueError("the token is not that of this selector: count first, then give the token of the answer")
    if not 0 <= now_ms - int(at_ms) <= GOOD_FOR_MS:
        raise ValueError("the count is too old: count again")
    try:
        digests = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        raise ValueError("the token is cut off: count again, and give the whole token of the answer") from None
    return frozenset(digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES))


def digest_of_timer(timer: NamedTimer) -> bytes:
    return blake2b(str(timer.place).encode(), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Selections:
    _reads: GroupReads
    _requests: RequestSender
    _clock: Clock

    async def count(self, caller: Reader, asked: SelectionAsked) -> Counted:
        found = await self._matching(caller, asked)
        return Counted(
            matching=found.matching,
            taken=len(found.timers),
            first=[*map(_printed, found.timers[:_FIRST_SHOWN])],
            samples=found.timers[:_FIRST_SHOWN],
            token=token_of(asked.selector, found.timers, self._clock.now_ms()),
            after=found.after,
            missing=found.missing,
        )

    async def act(
        self, caller: Caller, action: Action, asked: SelectionActed, progress: SendProgress | None = None
    ) -> ActedOnSelection:
        """`progress`: is kept up to date."""
        progress = progress or SendProgress()
        counted = digests_in(asked, self._clock.now_ms())
        logged = asked.model_dump(exclude={"token"}, exclude_none=True)
        with audit.logged_action(caller, f"{action.name} selection", logged) as results:
            found = await self._matching(caller, asked)
            chosen = _choose(action, found, counted)
            progress.timers = len(chosen)
            results.update(ids=[_printed(timer) for timer in chosen], sent=progress.sent)
            requests = _requests_by_topic(action, chosen, asked)
            await asyncio.to_thread(self._requests.send, requests, progress)
            acted = ActedOnSelection(action=action.name, **progress.result(), left=found.matching - len(chosen))
            results.update(acted.model_dump(exclude={"action"}))
        return acted

    async def _matching(self, caller: Caller, asked: SelectionAsked) -> GroupListing:
        filter_ = TimersAsked(**asked.selector.model_dump(), limit=MAX_PER_SELECTION, after=asked.after)
        return await self._reads.timers(caller, filter_)


def _printed(timer: NamedTimer) -> str:
    return timer.id or timer.id_base64 or timer.origin_text


def _choose(action: Action, found: GroupListing, counted: Container[bytes]) -> list[NamedTimer]:
    """Return the timers that were counted. Raises ValueError, HTTPException if the action would miss timers."""
    if found.missing:  # timers of these partitions would be left out unnoticed
        names, why = ", ".join(each.partition for each in found.missing), found.missing[0].why
        raise HTTPException(409, f"nothing was sent, as partitions have not answered: {names}; {why}: try again")
    if action.still_matches and found.matching > MAX_PER_SELECTION:
        raise ValueError(f"{found.matching} match, {MAX_PER_SELECTION} go at a time: narrow the selector")
    chosen = [timer for timer in found.timers if digest_of_timer(timer) in counted]
    if action.still_matches and len(chosen) < len(found.timers):
        later = len(found.timers) - len(chosen)
        raise HTTPException(409, f"{later} match now that were not counted: nothing was sent, count again")
    return chosen


def _requests_by_topic(action: Action, timers: list[NamedTimer], asked: SelectionActed) -> dict[str, SendRequests]:
    by_topic: defaultdict[str, list[NamedTimer]] = defaultdict(list)
    for timer in timers:
        by_topic[timer.place.partition.topic].append(timer)
    model = action.request_model

    def send(own: list[NamedTimer], producer: TimerOperator) -> Iterator["Future[Sent]"]:
        return (future for timer in own for future in action.send(producer, model(**asked.for_timer(timer))))

    return {topic: partial(send, own) for topic, own in by_topic.items()}
