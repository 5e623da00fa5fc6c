"""List the latest rejected records, and send chosen ones again.

A list reads only the last MAX_READ_PER_PARTITION records of each partition of the rejected topic.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from fastapi import Query
from starlette.exceptions import HTTPException

from bridge.page import guard as audit
from bridge.page.api.kafka import ConfluentKafkaPort, in_thread
from bridge.page.api.requests import RedriveAsked, RejectedAsked, RejectedRecordAsked
from bridge.page.api.responses import Redriven, Rejected, RejectedRecord, RejectedRecords
from bridge.page.guard import Operator, Reader
from bridge.ports import Record
from bridge.query.search import Header, content, id_fields
from bridge.redrive.rules import is_number, marker_of, parked
from kafka_timer.headers import ERROR_DETAIL
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules

MAX_READ_PER_PARTITION = 2000


@dataclass(frozen=True)
class RejectedTopic:
    """`rules`: by timer topic."""

    _kafka: ConfluentKafkaPort
    _topic: str
    _rules: Mapping[str, Rules]
    _max_read: int = MAX_READ_PER_PARTITION

    @in_thread
    def record(self, caller: Reader, asked: Annotated[RejectedRecordAsked, Query()]) -> RejectedRecord:
        place, offset = self._place(asked.record)
        markers = self._kafka.redriven()
        record = self._read(place, offset)
        described = record and self._describe(place, record, markers)
        if record is None or described is None:
            raise HTTPException(404, f"{asked.record} is no rejected record any more: retention deleted it")
        audit.log_action(caller, "read value", asked.model_dump(), {})
        shown = {"key": content(record.key), "value": content(record.value)}
        headers = [Header(name=name, value=content(value)) for name, value in record.headers]
        return RejectedRecord(**described.model_dump(), **shown, headers=headers)

    def _read(self, place: TimerPartition, offset: int) -> Record | None:
        with self._kafka.reader() as reader:
            is_known = place.partition < (reader.partitions(self._topic) or 0)
            first, end = reader.bounds(place) if is_known else (0, 0)
            if not first <= offset < end:
                return None
            records = chain.from_iterable(reader.requests(place, offset, offset + 1))
            return next((each for each in records if each.offset == offset), None)

    @in_thread
    def redrive(self, caller: Operator, asked: RedriveAsked) -> Redriven:
        with audit.logged_action(caller, "redrive", asked.model_dump()) as results:
            results["sent_again"] = []  # kept up to date, also if a later one fails
            places = {self._place(name) for name in asked.records}
            result = self._kafka.redrive(places, lambda sent: results["sent_again"].extend(each.name for each in sent))
            refused = {each.name: code for each, code in result.refused}
            not_sent = len(places) - result.count - len(refused)
            redriven = Redriven(sent=result.count, refused=refused, not_sent=not_sent)
            results.update(redriven.model_dump())
        return redriven

    @in_thread
    def latest(self, asked: Annotated[RejectedAsked, Query()]) -> RejectedRecords:
        markers = self._kafka.redriven()
        found: list[Rejected] = []
        looked_at, has_older = 0, False
        with self._kafka.reader() as reader:
            for number in range(reader.partitions(self._topic) or 0):
                place = TimerPartition(self._topic, number)
                first, end = reader.bounds(place)
                begin = max(first, end - self._max_read)
                has_older |= begin > first
                for records in reader.requests(place, begin, end):
                    looked_at += len(records)
                    found += filter(None, (self._describe(place, record, markers) for record in records))
        chosen = [each for each in found if asked.code in (None, each.code) and asked.topic in (None, each.topic)]
        chosen.sort(key=lambda each: each.parked_ms, reverse=True)
        return RejectedRecords(records=chosen[: asked.limit], looked_at=looked_at, has_older=has_older)

    def _place(self, name: str) -> tuple[TimerPartition, int]:
        partition, _, offset = name.removeprefix(f"{self._topic}/").partition("/")
        if not (name.startswith(f"{self._topic}/") and is_number(partition) and is_number(offset)):
            raise ValueError(f"{name!r} is not a record of {self._topic}: name it as the list does")
        return TimerPartition(self._topic, int(partition)), int(offset)

    def _describe(self, place: TimerPartition, record: Record, markers: Container[bytes]) -> Rejected | None:
        found = parked(place, record, self._rules)
        if found is None:
            return None
        is_redriven = marker_of(found) in markers
        # Any writer can forge the origin, so it may be on another topic than ours.
        may_redrive = not (found.is_bare or is_redriven) and found.partition.topic in self._rules
        detail = dict(record.headers)[ERROR_DETAIL] or b""
        return Rejected(
            parked=found.name,
            parked_ms=found.parked_ms,
            code=found.code,
            detail=detail.decode(errors="replace"),
            origin=found.origin_text,
            topic=found.target,
            bytes=found.size,
            may_redrive=may_redrive,
            is_redriven=is_redriven,
            **id_fields(found.id),
        )
