"""Request models of the API: queries and JSON bodies. Validators raise ValueError for pydantic to report."""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from bridge.partition.options import parse_instant_ms
from bridge.query.search import NamedTimer, SearchPosition, TimerFilter
from bridge.query.summary import parse_bucket_ms
from kafka_timer import Sent
from kafka_timer.durations import duration_text, parse_duration_ms
from kafka_timer.headers import MAX_INT64
from kafka_timer.instants import SECONDS_BELOW
from kafka_timer.origin import TimerPartition
from schemas.receipts import Kind
from timer.index.due_counts import HOUR_MS

API = "/api/v1"
MAX_LISTED = 20_000
_MAX_REJECTED = 1000
_MAX_BUCKETS = 1000


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Read(Question):
    local: bool = Field(False, description="Answer from the asked instance alone.")


def _instant(value: object) -> object:
    # An earlier ISO text finds the same timers. Peers get the number, and would refuse a smaller one.
    return max(parse_instant_ms(str(value)), SECONDS_BELOW) if value else None


def _parsed_by(parse: Callable[[str], int]) -> BeforeValidator:
    """Parse the text of a query; pass our own numbers through."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _shift_ms(value: object) -> int:
    """Parse 1h or -1h. A JSON number has no unit, so it is refused."""
    ms = parse_duration_ms(str(value).removeprefix("-"))
    return -ms if str(value).startswith("-") else ms


_WithUnit = PlainSerializer(lambda ms: "-" * (ms < 0) + duration_text(abs(ms)), when_used="unless-none")


def _place(value: object) -> object:
    try:
        return str(SearchPosition.parse(value)) if isinstance(value, str) else value
    except (ValueError, TypeError):
        raise ValueError("give `after` of the previous page") from None


def _origins(value: object) -> object:
    """Check and join them by single spaces: a browser sends other ones."""
    return " ".join("/".join(map(str, Sent.parse(each))) for each in value.split()) if isinstance(value, str) else value


After = Annotated[str | None, BeforeValidator(_place)]
Instant = Annotated[int | None, BeforeValidator(_instant)]
"""Epoch ms, or ISO 8601 with a zone."""


class PendingAsked(Read):
    topic: str | None = Field(None, description="Only this target topic.")
    bucket: Annotated[int, _parsed_by(parse_bucket_ms), _WithUnit] = Field(
        HOUR_MS, description="Whole hours: 1h, 6h, 1d."
    )


class Selector(Question):
    """Selects pending timers. A field that is left out matches all."""

    topic: str | None = Field(None, description="The target topic.")
    key_prefix: str | None = Field(None, description="The beginning of the request's key.")
    key: str | None = Field(None, description="Text anywhere in the request's key.")
    due_from: Instant = None
    due_to: Instant = Field(None, description="Exclusive.")
    header: str | None = Field(None, description="name=value, or name alone for any value; of the request.")
    rule: str | None = Field(
        None, description="A part of the rule of recurring timers, such as `every 1h`; any: all of them."
    )
    paused: bool | None = Field(None, description="Timers that were paused one by one: true or false.")
    origins: Annotated[str | None, BeforeValidator(_origins)] = Field(
        None, description="topic/partition/offset of their first requests, separated by spaces."
    )

    def digest(self) -> str:
        text = json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class TimersAsked(Selector, Read):
    after: After = Field(None, description="`after` of the previous page.")
    limit: int = Field(100, ge=0, le=MAX_LISTED, description="0: only their number.")
    bucket: Annotated[int | None, _parsed_by(parse_duration_ms), _WithUnit] = Field(
        None, gt=0, description="Counts by due time too: 1m, 1h; give due_from and due_to."
    )

    order: Literal["first", "latest"] = Field("first", description="latest: in reverse order of due times.")
    content: bool = Field(False, description="True: with key, rule, and the beginning of the value.")

    def search_filter(self) -> TimerFilter:
        origins = [Sent.parse(each) for each in (self.origins or "").split()]
        name, equals, value = (self.header or "").partition("=")
        return TimerFilter(
            topic=self.topic or None,
            key_prefix=(self.key_prefix or "").encode(),
            key_part=(self.key or "").encode(),
            origins=frozenset((TimerPartition(*each[:2]), each.offset) for each in origins),
            header=(name, value.encode() if equals else None) if name else None,
            rule=self.rule or "",
            is_paused=self.paused,
            due_from_ms=self.due_from or 0,
            due_to_ms=MAX_INT64 if self.due_to is None else self.due_to,
            after=None if self.after is None else SearchPosition.parse(self.after),
            limit=self.limit,
            bucket_ms=self.bucket,
            is_latest_first=self.order == "latest",
            has_content=self.content,
        )

    @model_validator(mode="after")
    def _bounded(self) -> "TimersAsked":
        if self.bucket is None:
            return self
        if self.due_from is None or self.due_to is None or self.due_to - self.due_from > _MAX_BUCKETS * self.bucket:
            raise ValueError(f"bucket: give due_from and due_to, at most {_MAX_BUCKETS} buckets apart")
        return self


class Named(Question):
    id: str | None = None
    id_base64: str | None = Field(None, description="An id that is not UTF-8.")
    origin: str | None = Field(None, description="topic/partition/offset of its first request, if it has no id.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.id, self.id_base64, self.origin].count(None) != 2:
            raise ValueError("give one of id, id_base64 and origin")
        self.name()
        return self

    def name(self) -> bytes | Sent:
        """Return the id, or the position of the request. Raises ValueError."""
        return self.raw() if self.origin is None else Sent.parse(self.origin)

    def raw(self) -> bytes:
        return base64.b64decode(self.id_base64 or "", validate=True) if self.id is None else self.id.encode()


class TimerAsked(Named, Read):
    value: bool = Field(False, description="True: with the value of the message.")


class ActionAsked(Question):
    timer_topic: str | None = Field(None, description="By default the setting timer_topic.")


class PlacedAsked(Named, ActionAsked):
    partition: int | None = Field(None, ge=0, description="The timer's, if it was not chosen by its id (murmur2).")


class CancelAsked(PlacedAsked):
    everywhere: bool = Field(False, description="To every partition, if its own was not chosen by its id (murmur2).")

    @model_validator(mode="after")
    def _one_place(self) -> "CancelAsked":
        if self.everywhere and (self.partition, self.origin) != (None, None):
            raise ValueError("everywhere goes to every partition: give either that or a partition or origin")
        return self


class MoveAsked(PlacedAsked):
    delay: str | None = Field(None, description="From now: 5s, 2h30m.")
    at: str | None = Field(None, description="ISO 8601 with a zone, or epoch ms.")


class TopicAsked(ActionAsked):
    """Without `timer_topic`, all timer topics."""

    topic: str = Field(min_length=1, description="The target topic.")


class SentHeader(Question):
    name: str
    value: str | None


class MessageAsked(ActionAsked):
    topic: str
    value: str | None = Field(None, description="Null: a tombstone.")
    key: str | None = None
    headers: list[SentHeader] = Field(default_factory=list)
    delay: str | None = Field(None, description="From now: 5s, 2h30m.")
    at: str | None = Field(None, description="ISO 8601 with a zone, or epoch ms.")
    level: int | None = Field(None, description="A delay level, such as 3 for 10 s.")
    partition: int | None = Field(None, description="The target topic's; by default the key chooses.")

    def message(self) -> dict[str, Any]:
        """Return the arguments of a TimerProducer, besides topic, value and id."""
        given = self.model_dump(include={"key", "at", "delay", "level", "partition"})
        return given | {"headers": [(each.name, each.value) for each in self.headers]}


class ScheduleAsked(MessageAsked):
    id: str | None = None
    every: str | None = Field(None, description="Recurring: 90s, 1h.")
    cron: str | None = Field(None, description="Recurring: five fields.")
    zone: str | None = Field(None, description="IANA zone of `cron`; default UTC.")


class ReplaceAsked(Named, MessageAsked):
    everywhere: bool = Field(False, description="Ends what is pending under the id in all other partitions too.")
    placed: int | None = Field(
        None, ge=0, description="Partition of the replaced timer, if its id did not choose it: ended there too."
    )

    @model_validator(mode="after")
    def _has_id(self) -> Self:
        if self.origin is not None:
            raise ValueError("give one of id and id_base64")
        return self


class SelectionAsked(Question):
    selector: Selector
    after: After = Field(None, description="Count only those after it: `after` of the previous count.")

    @model_validator(mode="after")
    def _narrows(self) -> "SelectionAsked":
        if self.selector == Selector():
            raise ValueError("an empty selector would take all timers: give a topic at least")
        return self


class SelectionActed(SelectionAsked):
    token: str = Field(description="Token of the count.")

    def for_timer(self, timer: NamedTimer) -> dict[str, Any]:
        """Return the fields of a PlacedAsked for one timer, in its own partition: the same id elsewhere is another."""
        name = {"id": timer.id, "id_base64": timer.id_base64} if timer.raw_id else {"origin": timer.origin_text}
        return name | {"partition": timer.place.partition.partition}


class SelectionMoved(SelectionActed):
    by: Annotated[int, BeforeValidator(_shift_ms), _WithUnit] = Field(
        description="Later by this: 1h, 30m; -1h is earlier."
    )

    def for_timer(self, timer: NamedTimer) -> dict[str, Any]:
        return super().for_timer(timer) | {"at": str(max(0, timer.due_ms + self.by))}


class OutcomesAsked(Question):
    kind: Kind | None = None
    limit: int = Field(200, ge=1, le=_MAX_REJECTED)


class RejectedAsked(Question):
    code: str | None = None
    topic: str | None = Field(None, description="The target topic.")
    limit: int = Field(100, ge=1, le=_MAX_REJECTED)


class RejectedRecordAsked(Question):
    record: str = Field(description="Its `parked`, as listed.")


class RedriveAsked(Question):
    records: list[str] = Field(min_length=1, max_length=_MAX_REJECTED, description="Their `parked`, as listed.")


def error_text(error: Exception) -> str:
    """Return the text of an error. Those of pydantic and FastAPI are put in one line, without hints for programmers."""
    texts = []
    for each in error.errors() if hasattr(error, "errors") else ():
        place = ".".join(str(part) for part in each["loc"] if part not in ("query", "body"))
        text = each["msg"].removeprefix("Value error, ")
        texts.append(f"{place}: {text}" if place else text)
    return "; ".join(texts) or str(error)
