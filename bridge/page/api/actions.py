"""Actions that change timers. Each is a row here, and becomes an API operation, a button and a choice for selections.

Each is sent as a request of its own, to the partition where the timer was found, else by the client's partitioning:

    about "timer"   POST /api/v1/timer/<name>, and with `each` /api/v1/selection/<name>     timer.html, counted.html
    about "topic"   POST /api/v1/topic/<name>, to each timer topic if none is named         overview.html
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from bridge.page import guard as audit
from bridge.page.api.kafka import in_thread
from bridge.page.api.requests import (
    ActionAsked,
    CancelAsked,
    MoveAsked,
    PlacedAsked,
    ReleaseAsked,
    ReplaceAsked,
    ScheduleAsked,
    SelectionActed,
    SelectionMoved,
    TopicAsked,
)
from bridge.page.api.responses import Acted
from bridge.page.api.timer_requests import RequestSender, SendProgress
from bridge.page.sessions import Caller
from kafka_timer import Repeat, Sent, TimerOperator

SentRequests = list["Future[Sent]"]


class FormField(NamedTuple):
    """An input of a form, besides the timer or topic."""

    name: str
    label: str
    hint: str = ""
    type: str = "text"


class Action(NamedTuple):
    name: str
    label: str
    summary: str
    request_model: type[ActionAsked]
    send: Callable[[TimerOperator, Any], SentRequests]
    about: Literal["timer", "topic"] = "timer"
    selection_model: type[SelectionActed] = SelectionActed
    still_matches: bool = False
    """True if timers still match their selection after the action. It then acts on all of them, or on none."""
    entries: tuple[FormField, ...] = ()
    entries_of_selection: tuple[FormField, ...] = ()

    @property
    def has_place(self) -> bool:
        """True if the request may name a partition. Selections are allowed then."""
        return issubclass(self.request_model, PlacedAsked)

    @property
    def is_destructive(self) -> bool:
        """True if a message is lost by it."""
        return self.name in ("cancel", "replace")

    @property
    def has_receipts(self) -> bool:
        """False for `schedule`, whose receipt is sent in one mode only."""
        return self.about == "timer" and self.name != "schedule"


def _cancel(timers: TimerOperator, asked: CancelAsked) -> SentRequests:
    if asked.everywhere:
        return timers.cancel_everywhere(asked.raw())
    return [timers.cancel(asked.name(), partition=asked.partition)]


def _replace(timers: TimerOperator, asked: ReplaceAsked) -> SentRequests:
    """Send the replacement; after its acknowledgement, cancel what it replaces in another partition."""
    id_ = asked.raw()
    if asked.everywhere:
        return timers.replace_everywhere(id_, asked.topic, asked.value, **asked.message())
    sent = [timers.replace(id_, asked.topic, asked.value, **asked.message())]
    if asked.placed not in (None, sent[0].result().partition):
        sent.append(timers.cancel(id_, partition=asked.placed))
    return sent


def _schedule(timers: TimerOperator, asked: ScheduleAsked) -> SentRequests:
    is_recurring = asked.every is not None or asked.cron is not None
    repeat = Repeat(cron=asked.cron, every=asked.every, zone=asked.zone) if is_recurring else None
    return [timers.schedule(asked.topic, asked.value, id=asked.id, repeat=repeat, **asked.message())]


def _move(timers: TimerOperator, asked: MoveAsked) -> SentRequests:
    return [timers.move(asked.name(), at=asked.at, delay=asked.delay, partition=asked.partition)]


def _release(timers: TimerOperator, asked: ReleaseAsked) -> SentRequests:
    return [timers.release(asked.name(), partition=asked.partition)]


def _pause_timer(timers: TimerOperator, asked: PlacedAsked) -> SentRequests:
    return [timers.pause_timer(asked.name(), partition=asked.partition)]


def _resume_timer(timers: TimerOperator, asked: PlacedAsked) -> SentRequests:
    return [timers.resume_timer(asked.name(), partition=asked.partition)]


def _pause(timers: TimerOperator, asked: TopicAsked) -> SentRequests:
    return timers.pause(asked.topic)


def _resume(timers: TimerOperator, asked: TopicAsked) -> SentRequests:
    return timers.resume(asked.topic)


_ALL = (
    Action("schedule", "New timer", "Deliver a message later, once or by a rule.", ScheduleAsked, _schedule),
    Action("cancel", "Cancel", "End what is pending under an id.", CancelAsked, _cancel),
    Action(
        "move",
        "Move",
        "Give what is pending under an id another due time.",
        MoveAsked,
        _move,
        selection_model=SelectionMoved,
        still_matches=True,
        entries=(FormField("delay", "To, from now", "2h30m"), FormField("at", "or at", type="datetime-local")),
        entries_of_selection=(FormField("by", "Later by; with - earlier", "1h, or -1h"),),
    ),
    Action("release", "Release now", "Make it due now.", ReleaseAsked, _release),
    Action("pause", "Pause", "Let it wait until it is resumed.", PlacedAsked, _pause_timer),
    Action("resume", "Resume", "Let it go on; if it is overdue, at once.", PlacedAsked, _resume_timer),
    Action("replace", "Replace", "Replace what is pending by another message.", ReplaceAsked, _replace),
    Action("pause", "Pause", "Let timers for a topic wait.", TopicAsked, _pause, "topic"),
    Action("resume", "Resume", "Release the timers that wait for a topic.", TopicAsked, _resume, "topic"),
)
TIMER_ACTIONS = tuple(action for action in _ALL if action.about == "timer")
TOPIC_ACTIONS = tuple(action for action in _ALL if action.about == "topic")
SELECTION_ACTIONS = tuple(action for action in TIMER_ACTIONS if action.has_place)


@dataclass(frozen=True)
class TimerActions:
    """`timer_topics`: the setting `timer_topic` first."""

    _requests: RequestSender
    _timer_topics: tuple[str, ...]

    @in_thread
    def act(self, caller: Caller, action: Action, asked: ActionAsked) -> Acted:
        """Send the action's requests, wait for their receipts, and write the audit log."""
        with audit.logged_action(caller, action.name, asked.model_dump(exclude_none=True)) as results:
            progress = SendProgress()
            results["sent"] = progress.sent
            requests = dict.fromkeys(self._topics_for(action, asked), lambda timers: action.send(timers, asked))
            self._requests.send(requests, progress, has_receipts=action.has_receipts)
            acted = Acted(action=action.name, **progress.result())
            results.update(acted.model_dump(exclude={"action"}))
        return acted

    def _topics_for(self, action: Action, asked: ActionAsked) -> tuple[str, ...]:
        topics, named = self._timer_topics, asked.timer_topic
        if named is None:
            return topics if action.about == "topic" else topics[:1]
        if named not in topics:
            raise ValueError(f"{named} is not a timer topic of this bridge: give one of {', '.join(topics)}")
        return (named,)
