"""Which offsets an audit reads, fixed before it reads them.

    timer.requests/0    [1200, 9800)      looked up first
    orders/0            [ 310, 7431)      looked up after it: a delivery of any request above is in here, or is missing

Spark resolves "latest" anew for each action, and two looks at a growing topic would not agree. So ranges are taken
here, once, up to the last stable offset (read_committed), and the requests' before the rest.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from spark_jobs.access import Access
from spark_jobs.errors import AuditTroubleError

_TIMEOUT_S = 30.0
_EACH_S = 3.0
_REMEDIES = {
    KafkaError._AUTHENTICATION: "look at sasl.mechanism, sasl.username, sasl.password in [kafka]",  # noqa: SLF001
    KafkaError._SSL: "look at security.protocol, ssl.ca.location in [kafka]",  # noqa: SLF001
}


class Span(NamedTuple):
    """The records [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class Cluster:
    """What a broker says about its topics. Raises AuditTroubleError with a remedy when it says nothing."""

    def __init__(self, access: Access) -> None:
        self._servers = access.bootstrap_servers
        self._trouble: str | None = None
        self._admin = AdminClient({**access.for_librdkafka(), "error_cb": self._told})  # type: ignore[dict-item]
        self.partitions = self._partitions()

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        """The records of these topics by their timestamps, all of them by default. Topics must exist."""
        places = [(topic, partition) for topic in sorted(topics) for partition in range(self.partitions[topic])]
        ends = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        starts = self._bounds(places, from_ms, ends) if from_ms is not None else self._starts(places)
        stops = self._bounds(places, to_ms, ends) if to_ms is not None else ends
        return [Span(*place, starts[place], max(starts[place], stops[place])) for place in places]

    def _starts(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _bounds(
        self, places: list[tuple[str, int]], at_ms: int, ends: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """The first record at or after a time; the end where there is none."""
        found = self._offsets(places, OffsetSpec.for_timestamp(at_ms))
        return {place: offset if 0 <= offset <= ends[place] else ends[place] for place, offset in found.items()}

    def _offsets(self, places: list[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        if not places:
            return {}
        try:
            answers = self._admin.list_offsets(
                {TopicPartition(*place): spec for place in places},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=_TIMEOUT_S,
            )
            return {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
        except KafkaException as wrong:
            raise AuditTroubleError(f"the broker did not tell offsets: {wrong.args[0].str()}") from wrong

    def _told(self, error: KafkaError) -> None:
        """By code alone: librdkafka's text may quote a setting."""
        self._trouble = _REMEDIES.get(error.code(), self._trouble)

    def _partitions(self) -> dict[str, int]:
        end_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                topics = self._admin.list_topics(timeout=min(_EACH_S, _TIMEOUT_S)).topics
            except KafkaException as wrong:
                self._admin.poll(0)  # it has told of what is wrong with us by then
                if self._trouble is not None:
                    raise AuditTroubleError(f"{self._servers} does not let us in: {self._trouble}") from wrong
                if time.monotonic() > end_s:
                    raise AuditTroubleError(
                        f"no broker answers at {self._servers} ({wrong.args[0].str()}): check --bootstrap-servers"
                    ) from wrong
            else:
                return {name: len(topic.partitions) for name, topic in topics.items()}
