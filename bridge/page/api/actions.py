"""Actions that change timers. Each is a row here, and becomes an API operation, a button and a choice for selections.

Each is sent as a request of its own, to the partition where the timer was found, else by the client's partitioning:

    about "timer"   POST /api/v1/timer/<name>, and with `each` /api/v1/selection/<name>     timer.html, counted.html
    about "topic"   POST /api/v1/topic/<name>, to each timer topic if none is named         overview.html

For a selection, first count its timers, then act on the counted ones and no other. A token lists them:

    1798142400123.9f86d081884c7d65.<8 bytes for each timer, base64>         time, selector, timers: 213 kB for 20,000

A timer is identified by partition, origin and due time, so one that was moved or replaced since is not in it. No state
is kept for a count: any instance accepts the token of any other.
"""

import asyncio
import base64
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from starlette.exceptions import HTTPException

from bridge.page import guard as audit
from bridge.page.api import requests
from bridge.page.api.group_reads import GroupReads
from bridge.page.api.kafka import in_thread
from bridge.page.api.requests import PlacedAsked, TopicAsked
from bridge.page.api.responses import Acted, ActedOnSelection, Counted, GroupListing
from bridge.page.api.timer_requests import RequestSender, SendProgress, SendRequests
from bridge.page.guard import Reader
from bridge.page.sessions import Caller
from bridge.ports import Clock
from bridge.query.search import NamedTimer, Selector
from kafka_timer import Repeat, Sent, TimerOperator

SentRequests = list["Future[Sent]"]

GOOD_FOR_MS = 24 * 3_600_000
"""Counting millions of timers, part by part, takes hours before the first action."""
_DIGEST_BYTES = 8
MAX_PER_SELECTION = 20_000
"""Timers of one count and of one action on it; the others are left for the next one."""
_FIRST_SHOWN = 10


class Action(NamedTuple):
    name: str
    label: str
    summary: str
    request_model: type[requests.ActionAsked]
    send: Callable[[TimerOperator, Any], SentRequests]

    @property
    def about(self) -> Literal["timer", "topic"]:
        return "topic" if self.request_model is TopicAsked else "timer"

    @property
    def has_place(self) -> bool:
        """True if the request may name a partition. Selections are allowed then."""
        return issubclass(self.request_model, PlacedAsked)

    @property
    def still_matches(self) -> bool:
        """True if timers still match their selection after the action. It then acts on all of them, or on none."""
        return self.name == "move"

    @property
    def selection_model(self) -> type[requests.SelectionActed]:
        return requests.SelectionMoved if self.name == "move" else requests.SelectionActed

    @property
    def is_destructive(self) -> bool:
        """True if a message is lost by it."""
        return self.name in ("cancel", "replace")

    @property
    def has_receipts(self) -> bool:
        """False for `schedule`, whose receipt is sent in one mode only."""
        return self.about == "timer" and self.name != "schedule"


def _cancel(timers: TimerOperator, asked: requests.CancelAsked) -> SentRequests:
    if asked.everywhere:
        return timers.cancel_everywhere(asked.raw())
    return [timers.cancel(asked.name(), partition=asked.partition)]


def _replace(timers: TimerOperator, asked: requests.ReplaceAsked) -> SentRequests:
    """Send the replacement; after its acknowledgement, cancel what it replaces in another partition."""
    id_ = asked.raw()
    if asked.everywhere:
        return timers.replace_everywhere(id_, asked.topic, asked.value, **asked.message())
    sent = [timers.replace(id_, asked.topic, asked.value, **asked.message())]
    if asked.placed not in (None, sent[0].result().partition):
        sent.append(timers.cancel(id_, partition=asked.placed))
    return sent


def _schedule(timers: TimerOperator, asked: requests.ScheduleAsked) -> SentRequests:
    is_recurring = asked.every is not None or asked.cron is not None
    repeat = Repeat(cron=asked.cron, every=asked.every, zone=asked.zone) if is_recurring else None
    return [timers.schedule(asked.topic, asked.value, id=asked.id, repeat=repeat, **asked.message())]


def _placed(send: Callable[..., "Future[Sent]"]) -> Callable[[TimerOperator, Any], SentRequests]:
    return lambda timers, asked: [send(timers, asked.name(), partition=asked.partition)]


def _of_topic(send: Callable[[TimerOperator, str], SentRequests]) -> Callable[[TimerOperator, Any], SentRequests]:
    return lambda timers, asked: send(timers, asked.topic)


def _move(timers: TimerOperator, asked: requests.MoveAsked) -> SentRequests:
    return [timers.move(asked.name(), at=asked.at, delay=asked.delay, partition=asked.partition)]


_ALL = (
    Action("schedule", "New timer", "Deliver a message later, once or by a rule.", requests.ScheduleAsked, _schedule),
    Action("cancel", "Cancel", "End what is pending under an id.", requests.CancelAsked, _cancel),
    Action("move", "Move", "Give what is pending under an id another due time.", requests.MoveAsked, _move),
    Action("release", "Release now", "Make it due now.", PlacedAsked, _placed(TimerOperator.release)),
    Action("pause", "Pause", "Let it wait until it is resumed.", PlacedAsked, _placed(TimerOperator.pause_timer)),
    Action(
        "resume", "Resume", "Let it go on; if it is overdue, at once.", PlacedAsked, _placed(TimerOperator.resume_timer)
    ),
    Action("replace", "Replace", "Replace what is pending by another message.", requests.ReplaceAsked, _replace),
    Action("pause", "Pause", "Let timers for a topic wait.", TopicAsked, _of_topic(TimerOperator.pause)),
    Action(
        "resume", "Resume", "Release the timers that wait for a topic.", TopicAsked, _of_topic(TimerOperator.resume)
    ),
)
TIMER_ACTIONS = tuple(action for action in _ALL if action.about == "timer")
TOPIC_ACTIONS = tuple(action for action in _ALL if action.about == "topic")
SELECTION_ACTIONS = tuple(action for action in TIMER_ACTIONS if action.has_place)


def token_of(selector: Selector, timers: Iterable[NamedTimer], now_ms: int) -> str:
    digests = b"".join(digest_of_timer(timer) for timer in timers)
    return f"{now_ms}.{selector.digest()}.{base64.urlsafe_b64encode(digests).decode()}"


def digests_in(asked: requests.SelectionActed, now_ms: int) -> frozenset[bytes]:
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
class Actions:
    """`timer_topics`: the setting `timer_topic` first."""

    _reads: GroupReads
    _requests: RequestSender
    _clock: Clock
    _timer_topics: tuple[str, ...]

    @in_thread
    def act(self, caller: Caller, action: Action, asked: requests.ActionAsked) -> Acted:
        """Send the action's requests, wait for their receipts, and write the audit log."""
        with audit.logged_action(caller, action.name, asked.model_dump(exclude_none=True)) as results:
            progress = SendProgress()
            results["sent"] = progress.sent
            sends = dict.fromkeys(self._topics_for(action, asked), lambda timers: action.send(timers, asked))
            self._requests.send(sends, progress, has_receipts=action.has_receipts)
            acted = Acted(action=action.name, **progress.result())
            results.update(acted.model_dump(exclude={"action"}))
        return acted

    async def count(self, caller: Reader, asked: requests.SelectionAsked) -> Counted:
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

    async def act_on_selection(
        self, caller: Caller, action: Action, asked: requests.SelectionActed, progress: SendProgress | None = None
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
            await asyncio.to_thread(self._requests.send, _requests_by_topic(action, chosen, asked), progress)
            acted = ActedOnSelection(action=action.name, **progress.result(), left=found.matching - len(chosen))
            results.update(acted.model_dump(exclude={"action"}))
        return acted

    async def _matching(self, caller: Caller, asked: requests.SelectionAsked) -> GroupListing:
        filter_ = requests.TimersAsked(**asked.selector.model_dump(), limit=MAX_PER_SELECTION, after=asked.after)
        return await self._reads.timers(caller, filter_)

    def _topics_for(self, action: Action, asked: requests.ActionAsked) -> tuple[str, ...]:
        topics, named = self._timer_topics, asked.timer_topic
        if named is None:
            return topics if action.about == "topic" else topics[:1]
        if named not in topics:
            raise ValueError(f"{named} is not a timer topic of this bridge: give one of {', '.join(topics)}")
        return (named,)


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


def _requests_by_topic(
    action: Action, timers: list[NamedTimer], asked: requests.SelectionActed
) -> dict[str, SendRequests]:
    by_topic: defaultdict[str, list[NamedTimer]] = defaultdict(list)
    for timer in timers:
        by_topic[timer.place.partition.topic].append(timer)
    model = action.request_model

    def send(own: list[NamedTimer], producer: TimerOperator) -> Iterator["Future[Sent]"]:
        return (future for timer in own for future in action.send(producer, model(**asked.for_timer(timer))))

    return {topic: partial(send, own) for topic, own in by_topic.items()}
