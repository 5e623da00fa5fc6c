"""What changes something: each action is a row here, and so an operation of the API, a button, a choice for selections.

Each is sent as a request of its own, to the partition where the timer was seen, else with the client's partitioning:

    about "timer"   POST /api/v1/timer/<name>, and with `each` /api/v1/selection/<name>     timer.html, counted.html
    about "topic"   POST /api/v1/topic/<name>, to each timer topic if none is named         overview.html
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

from bridge.client import Sent, TimerProducer
from bridge.http.api.requests import (
    ActionAsked,
    CancelAsked,
    MoveAsked,
    PlacedAsked,
    ReleaseAsked,
    ReplaceAsked,
    SelectionActed,
    SelectionMoved,
    TopicAsked,
)
from bridge.query.search import NamedTimer

Sending = Callable[[TimerProducer, Any], "list[Future[Sent]]"]


class FormField(NamedTuple):
    """What a form asks for, beside what it is about."""

    name: str
    label: str
    hint: str = ""


NO_ID = "pause the real topic to keep them from leaving; give an id to whatever may have to be changed"
"""What to do about timers that no request can name."""


def has_id(timer: NamedTimer) -> bool:
    return timer.raw_id is not None


class Action(NamedTuple):
    """`one` sends what the API was asked for. `each`: for a timer of a selection; None: not for selections."""

    name: str
    label: str
    summary: str
    asked: type[ActionAsked]
    one: Sending
    about: Literal["timer", "topic"] = "timer"
    asked_of_selection: type[SelectionActed] = SelectionActed
    each: Callable[[TimerProducer, NamedTimer, SelectionActed], "list[Future[Sent]]"] | None = None
    reaches: Callable[[NamedTimer], bool] = has_id
    """Whether a request can name it."""
    stays: bool = False
    """What it acted on still matches its selection: it acts on all of it, or on nothing."""
    has_receipts: bool = True
    entries: tuple[FormField, ...] = ()
    entries_of_selection: tuple[FormField, ...] = ()

    @property
    def has_place(self) -> bool:
        """It may be told the partition."""
        return issubclass(self.asked, PlacedAsked)


def _cancel(timers: TimerProducer, asked: CancelAsked) -> "list[Future[Sent]]":
    if asked.everywhere:
        return timers.cancel_everywhere(asked.raw())
    return [timers.cancel(asked.raw(), partition=asked.partition)]


def _cancel_each(timers: TimerProducer, timer: NamedTimer, _: SelectionActed) -> "list[Future[Sent]]":
    """Where it stands: what has the same id elsewhere is another timer."""
    return [timers.cancel(_id(timer), partition=timer.place.shard.partition)]


def _replace(timers: TimerProducer, asked: ReplaceAsked) -> "list[Future[Sent]]":
    """Nothing is ended before the replacement is acknowledged."""
    id_ = asked.raw()
    given: dict[str, Any] = {
        "key": asked.key,
        "headers": [(each.name, each.value) for each in asked.headers],
        "at": asked.at,
        "delay": asked.delay,
        "level": asked.level,
        "partition": asked.partition,
    }
    if asked.everywhere:
        return timers.replace_everywhere(id_, asked.topic, asked.value, **given)
    sent = [timers.replace(id_, asked.topic, asked.value, **given)]
    if asked.placed not in (None, sent[0].result().partition):
        sent.append(timers.cancel(id_, partition=asked.placed))
    return sent


def _move(timers: TimerProducer, asked: MoveAsked) -> "list[Future[Sent]]":
    return [timers.move(asked.raw(), at=asked.at, delay=asked.delay, partition=asked.partition)]


def _move_each(timers: TimerProducer, timer: NamedTimer, asked: SelectionActed) -> "list[Future[Sent]]":
    assert isinstance(asked, SelectionMoved)
    due_ms = max(0, timer.due_ms + asked.by)
    return [timers.move(_id(timer), at=due_ms, partition=timer.place.shard.partition)]


def _release(timers: TimerProducer, asked: ReleaseAsked) -> "list[Future[Sent]]":
    return [timers.release(asked.raw(), partition=asked.partition)]


def _release_each(timers: TimerProducer, timer: NamedTimer, _: SelectionActed) -> "list[Future[Sent]]":
    return [timers.release(_id(timer), partition=timer.place.shard.partition)]


def _id(timer: NamedTimer) -> bytes:
    assert timer.raw_id is not None, "a request names a timer by its id"
    return timer.raw_id


def _pause(timers: TimerProducer, asked: TopicAsked) -> "list[Future[Sent]]":
    return timers.pause(asked.topic)


def _resume(timers: TimerProducer, asked: TopicAsked) -> "list[Future[Sent]]":
    return timers.resume(asked.topic)


ACTIONS = {
    action.name: action
    for action in (
        Action("cancel", "Cancel", "End what is pending under an id.", CancelAsked, _cancel, each=_cancel_each),
        Action(
            "move",
            "Move",
            "Give what is pending under an id another due time.",
            MoveAsked,
            _move,
            asked_of_selection=SelectionMoved,
            each=_move_each,
            stays=True,
            entries=(FormField("delay", "to, from now", "2h30m"),),
            entries_of_selection=(FormField("by", "by", "1h, or -1h"),),
        ),
        Action("release", "Release now", "Let it be due now.", ReleaseAsked, _release, each=_release_each),
        Action("replace", "Replace", "Send a message in the place of what is pending.", ReplaceAsked, _replace),
        Action("pause", "Pause", "Let timers for a topic wait.", TopicAsked, _pause, "topic", has_receipts=False),
        Action("resume", "Resume", "Let them go on.", TopicAsked, _resume, "topic", has_receipts=False),
    )
}
"""By name, as they stand on the page."""
ABOUT_TIMERS = tuple(action for action in ACTIONS.values() if action.about == "timer")
ABOUT_TOPICS = tuple(action for action in ACTIONS.values() if action.about == "topic")
ABOUT_SELECTIONS = tuple(action for action in ABOUT_TIMERS if action.each is not None)
