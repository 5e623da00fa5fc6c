"""Adoption over Kafka: send what is pending on the mirror of a lost cluster's timer topic, by the rules of `mirror`.

It is a redrive of the mirror's records: each is sent in a transaction with its marker, so a repeated run adds nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bridge.errors import BridgeError
from bridge.ports import Record
from bridge.redrive.mirror import PENDING, Delivered, MirroredPartition, count_deliveries
from bridge.redrive.rules import KeyAndHeaders, Parked, RedriveFilter, RedrivePlan
from bridge.redrive.sender import ConfluentRedrive
from kafka_timer.origin import TimerPartition

_SKEW_MS = 60_000
"""A delivery may be older than its due time by as much, as brokers and bridges have clocks of their own."""


class Mirror(NamedTuple):
    """prefix: of the mirrored topics' names. due_from_ms: the lost cluster has delivered what was due earlier."""

    topic: str
    prefix: str
    timer_topic: str
    due_from_ms: int


class ConfluentAdoption(ConfluentRedrive):
    """One `look_at` and optionally one `apply`."""

    def look_at(self, mirror: Mirror) -> RedrivePlan:
        """Return what `apply` would send, up to now. Raises BridgeError if the topics do not fit."""
        parts: list[MirroredPartition] = []
        for number in range(self._partitions(mirror)):
            place, new = TimerPartition(mirror.topic, number), TimerPartition(mirror.timer_topic, number)
            part = MirroredPartition(place, new, self._rules[mirror.timer_topic], mirror.due_from_ms)
            for records in self._records(place):
                part.read(records)
            for records in self._records(new):
                part.read(records, is_new=True)
            parts.append(part)
        plan = self._plan(RedriveFilter(frozenset({mirror.timer_topic}), frozenset({PENDING})))
        delivered = self._deliveries(mirror, {target for part in parts for target in part.targets}, plan)
        self._timers = dict(each for part in parts for each in part.judged(delivered))
        for record in self._timers:
            plan.add(record)
        if unknown := [origin for part in parts for origin in part.unknown]:
            plan.notes.append(
                f"{len(unknown)} cancels or moves name a timer by its position in the lost cluster, which the mirror"
                f" does not keep, so they count for nothing; the first is for {unknown[0].decode(errors='replace')}"
            )
        return plan

    def _partitions(self, mirror: Mirror) -> int:
        counts = [self._topics.partitions(topic) for topic in (mirror.topic, mirror.timer_topic)]
        if counts[0] is None or counts[0] != counts[1]:
            raise BridgeError(
                f"{mirror.topic} has {counts[0] or 'no'} partitions, {mirror.timer_topic} {counts[1] or 'none'}: start"
                f" `timer-bridge run` with as many, as each id has its partition"
            )
        if (kind := self._topics.config(mirror.topic)["message.timestamp.type"]) != "CreateTime":
            raise BridgeError(f"{mirror.topic}: message.timestamp.type is {kind}, which loses times: mirror it again")
        return counts[0]

    def _deliveries(self, mirror: Mirror, targets: set[str], plan: RedrivePlan) -> Delivered:
        found, timer_topic = Delivered(), mirror.topic.removeprefix(mirror.prefix)
        for target in sorted(targets):
            topic = mirror.prefix + target
            count = self._topics.partitions(topic)
            if count is None:
                plan.notes.append(f"{topic} does not exist: timers for {target} are sent also if they have left")
            for number in range(count or 0):
                for records in self._records(TimerPartition(topic, number), mirror.due_from_ms - _SKEW_MS):
                    count_deliveries(found, target, records, timer_topic, mirror.due_from_ms)
        return found

    def _records(self, place: TimerPartition, from_ms: int | None = None) -> Iterator[list[Record]]:
        first, end = self._history.bounds(place)
        if from_ms is not None:
            since = self._history.offset_at(place, from_ms)
            if 0 < first == since < end:
                raise BridgeError(f"{place} lacks deliveries since --due-from by retention: give a later time")
            first = max(first, since)
        return self._history.requests(place, first, end)

    def _request(self, found: Parked, record: Record) -> KeyAndHeaders | None:
        if record.timestamp_ms != found.parked_ms:
            return None
        return self._timers[found].request(record, self._rules[found.partition.topic])
