"""Rejected records, the latest first, as far as a bounded look goes; and the redrive of chosen ones.

Of each partition of the rejected topic the last LOOKED_AT records are read.
"""

from collections.abc import Callable, Container, Mapping, Sequence, Set
from itertools import chain, pairwise

from bridge.http.api.ports import KafkaSide, TopicReader
from bridge.http.api.requests import RejectedAsked
from bridge.http.api.responses import Redriven, Rejected, RejectedRecords
from bridge.ports import Record
from bridge.query.search import id_fields
from bridge.redrive.rules import Parked, is_number, mark_of, parked
from schemas.headers import ERROR_DETAIL, Rules
from schemas.origin import Shard

LOOKED_AT = 2000
_GAP = 100
"""So many records between two that are chosen are read with them, sooner than by another read."""
_Place = tuple[int, int]
"""Partition and offset."""


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
        wanted = list(dict.fromkeys(map(self._place, names)))
        with self._kafka.reader() as reader:
            found = self._found(reader, set(wanted))
        records = [found[place] for place in wanted if place in found]
        marks = self._kafka.redriven()
        fresh = [each for each in records if mark_of(each) not in marks]

        def note(sent: Sequence[Parked]) -> None:
            for each in sent:
                on_sent(_name(each))

        told = self._kafka.redrive(fresh, note)
        refused = {_name(each): code for each, code in told.refused}
        return Redriven(sent=told.sent, refused=refused, not_sent=len(set(names)) - told.sent - len(refused))

    def _place(self, name: str) -> _Place:
        partition, _, offset = name.removeprefix(f"{self._topic}/").partition("/")
        if not (name.startswith(f"{self._topic}/") and is_number(partition) and is_number(offset)):
            raise ValueError(f"{name!r} is no record of {self._topic}: name it as the list does")
        return int(partition), int(offset)

    def _found(self, reader: TopicReader, wanted: Set[_Place]) -> dict[_Place, Parked]:
        """Those that are there and can be sent. Neighbours are read together, as each read asks brokers anew."""
        found: dict[_Place, Parked] = {}
        count = reader.partitions(self._topic) or 0
        for partition in {partition for partition, _ in wanted if partition < count}:
            shard = Shard(self._topic, partition)
            _, end = reader.bounds(shard)
            for first, last in _stretches(sorted(offset for number, offset in wanted if number == partition)):
                for record in chain.from_iterable(reader.requests(shard, first, min(last + 1, end))):
                    made = parked(shard, record, self._rules) if (partition, record.offset) in wanted else None
                    if made is not None and self._can_be_sent(made):
                        found[partition, record.offset] = made
        return found

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


def _stretches(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of those that lie near each other; `offsets` ascend, and there are some."""
    gaps = [at for at, (one, next_) in enumerate(pairwise(offsets), 1) if next_ - one > _GAP]
    return [(offsets[start], offsets[end - 1]) for start, end in pairwise([0, *gaps, len(offsets)])]


def _name(parked: Parked) -> str:
    """As the list names it."""
    return f"{parked.place}/{parked.offset}"
