"""Rejected records, the latest first, as far as a bounded look goes; and the redrive of chosen ones.

Of each partition of the rejected topic the last LOOKED_AT records are read.
"""

from collections.abc import Callable, Container, Mapping, Sequence

from bridge.listing import id_fields
from bridge.page.answers import Redriven, Rejected, RejectedRecords
from bridge.page.kafka_side import KafkaSide, Reader
from bridge.page.questions import RejectedAsked
from bridge.ports import Record
from bridge.redrive import Parked, is_number, mark_of, parked
from schemas.headers import ERROR_DETAIL, Rules
from schemas.origin import Shard

LOOKED_AT = 2000


class RejectedTopic:
    """`rules`: by timer topic. Blocks; any thread. Raises BridgeError; ValueError for what names no record."""

    def __init__(self, kafka: KafkaSide, topic: str, rules: Mapping[str, Rules], looked_at: int = LOOKED_AT) -> None:
        self._kafka = kafka
        self._topic = topic
        self._rules = rules
        self._most = looked_at

    def latest(self, asked: RejectedAsked) -> RejectedRecords:
        marks = self._kafka.redriven()
        found: list[Rejected] = []
        looked_at, has_older = 0, False
        with self._kafka.reader() as reader:
            for number in range(reader.partitions(self._topic) or 0):
                place = Shard(self._topic, number)
                first, end = reader.bounds(place)
                begin = max(first, end - self._most)
                has_older |= begin > first
                for records in reader.requests(place, begin, end):
                    looked_at += len(records)
                    found += [told for record in records if (told := self._told(place, record, marks)) is not None]
        chosen = [each for each in found if asked.code in (None, each.code) and asked.topic in (None, each.topic)]
        chosen.sort(key=lambda each: each.parked_ms, reverse=True)
        return RejectedRecords(records=chosen[: asked.limit], looked_at=looked_at, has_older=has_older)

    def redrive(self, names: Sequence[str], on_sent: Callable[[str], None]) -> Redriven:
        """Those that are still there and were not sent before. `on_sent`: each that was, also where it fails then."""
        with self._kafka.reader() as reader:
            records = [found for name in dict.fromkeys(names) if (found := self._at(reader, name)) is not None]
        marks = self._kafka.redriven()
        fresh = [each for each in records if mark_of(each) not in marks]

        def note(sent: Sequence[Parked]) -> None:
            for each in sent:
                on_sent(_name(each))

        told = self._kafka.redrive(fresh, note)
        refused = {_name(each): code for each, code in told.refused}
        return Redriven(sent=told.sent, refused=refused, not_sent=len(set(names)) - told.sent - len(refused))

    def _at(self, reader: Reader, name: str) -> Parked | None:
        topic, _, rest = name.rpartition("/")[0].rpartition("/")
        offset = name.rpartition("/")[2]
        if topic != self._topic or not (is_number(rest) and is_number(offset)):
            raise ValueError(f"{name!r} is no record of {self._topic}: name it as the list does")
        place = Shard(topic, int(rest))
        if place.partition >= (reader.partitions(topic) or 0):
            return None
        end = min(int(offset) + 1, reader.bounds(place)[1])
        records = [record for each in reader.requests(place, int(offset), end) for record in each]
        found = parked(place, records[0], self._rules) if records else None
        return found if found is not None and self._can_be_sent(found) else None

    def _can_be_sent(self, record: Parked) -> bool:
        """Where it says that it came from is what its writer says: no other topic than a timer topic is sent to."""
        return not record.is_bare and record.shard.topic in self._rules

    def _told(self, place: Shard, record: Record, marks: Container[bytes]) -> Rejected | None:
        found = parked(place, record, self._rules)
        if found is None:
            return None
        is_redriven = mark_of(found) in marks
        detail = dict(record.headers)[ERROR_DETAIL] or b""
        return Rejected(
            parked=_name(found),
            parked_ms=found.parked_ms,
            code=found.code,
            detail=detail.decode(errors="replace"),
            origin=found.told_origin,
            topic=found.target,
            bytes=found.size,
            may_redrive=self._can_be_sent(found) and not is_redriven,
            is_redriven=is_redriven,
            **id_fields(found.id),
        )


def _name(parked: Parked) -> str:
    """As the list names it."""
    return f"{parked.place}/{parked.offset}"
