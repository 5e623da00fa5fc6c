"""A cluster without brokers, for what the jobs make of the ends of topics."""

from collections.abc import Iterable

from spark_jobs.kafka.admin import Cluster, Span


class FakeCluster(Cluster):
    """Its topics hold just these spans. topic_id None: ids may not be read; is_compacted None: nor may settings."""

    def __init__(self, *spans: Span, topic_id: str | None = "first", is_compacted: bool | None = False) -> None:
        self.topic_id, self._spans, self._is_compacted = topic_id, spans, is_compacted
        self.partitions = {topic: sum(s.topic == topic for s in spans) for topic, *_ in spans}

    def compacted(self, topics: Iterable[str], *, if_unknown: bool = False) -> list[str]:
        return [*topics] if self._is_compacted or (self._is_compacted is None and if_unknown) else []

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {} if self.topic_id is None else dict.fromkeys(topics, self.topic_id)

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:
        asked = set(topics)
        return [span for span in self._spans if span.topic in asked]

    def stable_spans(self, topics: Iterable[str], *, from_ms: int | None = None) -> list[Span]:
        return self.spans(topics)
