"""Request models of the API: queries and JSON bodies. Validators raise ValueError for pydantic to report."""

import base64
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from bridge.query.search import WITH_UNIT, After, NamedTimer, Question, Selector, TimerFilter, parsed_by
from bridge.query.summary import parse_bucket_ms
from kafka_timer import Sent
from kafka_timer.durations import parse_duration_ms
from schemas.receipts import Kind
from timer.index.due_counts import HOUR_MS

API = "/api/v1"
_MAX_REJECTED = 1000


class Read(Question):
    local: bool = Field(False, description="Answer from the asked instance alone.")


def _shift_ms(value: object) -> int:
    """Parse 1h or -1h. A JSON number has no unit, so it is refused."""
    ms = parse_duration_ms(str(value).removeprefix("-"))
    return -ms if str(value).startswith("-") else ms


class PendingAsked(Read):
    topic: str | None = Field(None, description="Only this target topic.")
    bucket: Annotated[int, parsed_by(parse_bucket_ms), WITH_UNIT] = Field(
        HOUR_MS, description="Whole hours: 1h, 6h, 1d."
    )


class TimersAsked(TimerFilter, Read):
    """A list of the asked instance, or of all."""


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
    by: Annotated[int, BeforeValidator(_shift_ms), WITH_UNIT] = Field(
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
