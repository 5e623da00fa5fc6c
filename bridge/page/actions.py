"""What changes something about a timer: each action is a row here, and so an operation of the API, and of selections.

Each is sent as a request of its own, with the client's partitioning.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from bridge.client import Sent, TimerProducer
from bridge.listing import NamedTimer
from bridge.page.questions import CancelAsked, ReplaceAsked


class Action(NamedTuple):
    """`one`: as the API is asked for one timer. `each`: for a timer of a selection; None: not for selections."""

    name: str
    label: str
    summary: str
    asked: type[CancelAsked]
    one: Callable[[TimerProducer, CancelAsked], "list[Future[Sent]]"]
    each: Callable[[TimerProducer, NamedTimer], "list[Future[Sent]]"] | None = None


def _cancel(timers: TimerProducer, asked: CancelAsked) -> "list[Future[Sent]]":
    return timers.cancel_everywhere(asked.raw()) if asked.everywhere else [timers.cancel(asked.raw())]


def _cancel_each(timers: TimerProducer, timer: NamedTimer) -> "list[Future[Sent]]":
    """To all partitions where its own was not chosen by its id."""
    id_ = timer.raw_id
    assert id_ is not None, "a request names a timer by its id"
    is_there = timers.partition_of(id_) == timer.place.shard.partition
    return [timers.cancel(id_)] if is_there else timers.cancel_everywhere(id_)


def _replace(timers: TimerProducer, asked: CancelAsked) -> "list[Future[Sent]]":
    assert isinstance(asked, ReplaceAsked)
    ended = timers.cancel_everywhere(asked.raw()) if asked.everywhere else []
    sent = timers.replace(
        asked.raw(),
        asked.topic,
        asked.value,
        key=asked.key,
        headers=[(each.name, each.value) for each in asked.headers],
        at=asked.at,
        delay=asked.delay,
        level=asked.level,
        partition=asked.partition,
    )
    return [*ended, sent]


ACTIONS = {
    action.name: action
    for action in (
        Action("cancel", "Cancel", "End what is pending under an id.", CancelAsked, _cancel, _cancel_each),
        Action("replace", "Replace", "Send a message in the place of what is pending.", ReplaceAsked, _replace),
    )
}
"""By name, as they stand on the page."""
