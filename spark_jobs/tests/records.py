"""Records of the three kinds of topics, each with defaults that make a faultless pair.

asked = request(offset=7, due_ms=5_000)
history = History([asked], [delivery(asked)], [])          -> class delivered
history = History([asked], [delivery(asked, at_ms=4_999)]) -> class early
cancel(b"x", offset=9), copy(asked, rolls=1, offset=9), receipt("cancelled", by=9, about=7)
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from schemas.profiles import DEFAULT_PROFILES, RECURRING
from spark_jobs.audit_rules import evidence
from spark_jobs.audit_rules.coverage import holes, is_outside
from spark_jobs.audit_rules.evidence import Observations, PartitionCount, pauses
from spark_jobs.audit_rules.judgement import build_outcomes, is_receipt_only
from spark_jobs.audit_rules.requests import Feature, requests
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.tables import RECORDS_DDL

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
AS_OF_MS = 100_000
OWN = frozenset({"timer.requests", "timer.rejected", "timer.receipts"})
SPANS = (Span("timer.requests", 0, 0, 1_000),)


class Record(NamedTuple):
    """One row as `read_records` gives it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    clock: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)


def request(
    offset: int = 0,
    *,
    due_ms: int | None = 5_000,
    target: str | None = "orders",
    at_ms: int = 1_000,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    foreign: Headers = (("tenant", b"a"),),
    also: Headers = (),
    id: bytes | None = None,  # noqa: A002 - the header's own name
    partition: int = 0,
) -> Record:
    """`also`: more control headers, or wrong ones."""
    time = [(names.DELIVER_MS, b"%d" % due_ms)] if due_ms is not None else []
    where = [(names.TOPIC, target.encode())] if target is not None else []
    named = [(names.ID, id)] if id is not None else []
    headers = (*where, *time, *named, *foreign, *also)
    return Record("timer.requests", partition, offset, at_ms, "LogAppendTime", key, value, headers)


def asking(
    action: str, of: bytes | str | None, offset: int, at_ms: int = 2_000, *, also: Headers = (), partition: int = 0
) -> Record:
    """Return a request about a timer: `pause`, `resume`, ... `of`: its id as bytes, or its origin as text."""
    named = [(names.ID, of)] if isinstance(of, bytes) else []
    named += [(names.OF, of.encode())] if isinstance(of, str) else []
    headers = ((names.ACTION, action.encode()), *named, *also)
    return Record("timer.requests", partition, offset, at_ms, "LogAppendTime", None, None, headers)


def cancel(of: bytes | str | None, offset: int, *, at_ms: int = 2_000, partition: int = 0) -> Record:
    return asking("cancel", of, offset, at_ms, partition=partition)


def move(of: bytes | str | None, offset: int, due_ms: int | None, *, at_ms: int = 2_000, partition: int = 0) -> Record:
    """What is pending under the id, or by that origin, is to be due then."""
    time = ((names.DELIVER_MS, b"%d" % due_ms),) if due_ms is not None else ()
    return asking("move", of, offset, at_ms, also=time, partition=partition)


def copy(asked: Record, offset: int, *, rolls: int = 1, at_ms: int = 2_000, **other: Any) -> Record:
    """What the bridge makes of a request that it rolls. `other`: fields of the record in which it differs."""
    due_ms = other.pop("due_ms", asked.header(names.DELIVER_MS))
    kept = [h for h in asked.headers if h[0] not in (names.ORIGIN, names.ROLLS, *names.TIMES)]
    told = ((names.DELIVER_MS, due_ms), (names.ORIGIN, asked.origin.encode()), (names.ROLLS, b"%d" % rolls))
    return asked._replace(offset=offset, timestamp_ms=at_ms, **{"headers": (*kept, *told), **other})


def paused_copy(asked: Record, offset: int, *, due_ms: int | None = None, **other: Any) -> Record:
    """What the bridge makes of a request that it pauses. due_ms: of an occurrence, or after a move."""
    own_ms = int(asked.header(names.DELIVER_MS) or 0) if due_ms is None else due_ms
    return copy(asked, offset, due_ms=b"%d" % (names.PAUSED_MS + own_ms), **other)


def delivery(
    asked: Record,
    *,
    at_ms: int | None = None,
    due_ms: int | None = None,
    foreign: Headers | None = None,
    origin: str | None = None,
    also: Headers = (),
    rolls: int = 0,
    **other: Any,
) -> Record:
    """What the bridge makes of a request, 3 ms late; `due_ms` where its header gives a delay or nothing.

    other: fields of the record in which it differs.
    """
    due_ms = due_ms if due_ms is not None else int(asked.header(names.DELIVER_MS) or 0)
    at_ms = at_ms if at_ms is not None else due_ms + 3
    added = (
        (names.ORIGIN, (origin or asked.origin).encode()),
        (names.DELIVER_MS, b"%d" % due_ms),
        (names.RELEASED_MS, b"%d" % at_ms),
        (names.ROLLS, b"%d" % rolls),
    )
    kept = tuple(header for header in asked.headers if header[0] not in names.CONTROL)
    headers = (*(kept if foreign is None else foreign), *added, *also)
    made = Record("orders", 0, asked.offset, at_ms, "LogAppendTime", b"key", b"value", headers)
    return made._replace(**other)


def rejection(asked: Record, code: str = "bad-header", *, at_ms: int | None = None, **other: Any) -> Record:
    """`other`: fields of the record in which it differs from what was sent."""
    added = ((names.ERROR, code.encode()), (names.ERROR_DETAIL, b"why"), (names.ORIGIN, asked.origin.encode()))
    at_ms = at_ms if at_ms is not None else asked.timestamp_ms + 2
    place = ("timer.rejected", 0, asked.offset, at_ms, "LogAppendTime")
    return Record(*place, asked.key, asked.value, (*asked.headers, *added))._replace(**other)


def receipt(kind: str, request: Record, about: Record | None = None, *, at_ms: int | None = None) -> Record:
    """That `request` became so; 2 ms after it. `about`: the timer that it ended, or itself."""
    at_ms = at_ms if at_ms is not None else request.timestamp_ms + 2
    said = {"v": 1, "kind": kind, "at_ms": at_ms, "request": request.origin}
    if about is not None:
        said["origin"] = about.origin
    return Record("timer.receipts", 0, 0, at_ms, "LogAppendTime", None, json.dumps(said).encode(), ())


def pause(target: str, offset: int, at_ms: int, *, on: bool | None = True, timers: str = "timer.requests") -> Record:
    """What an operator writes to the control topic; `on` None: the key is deleted."""
    value = None if on is None else json.dumps({"v": 1, "on": on}).encode()
    key = f"pause/{timers}/{target}".encode()
    return Record("timer.control", 0, offset, at_ms, "LogAppendTime", key, value, ())


@dataclass
class History:
    """What lies on the topics."""

    requests: list[Record] = field(default_factory=list, repr=False)
    deliveries: list[Record] = field(default_factory=list, repr=False)
    rejections: list[Record] = field(default_factory=list, repr=False)
    receipts: list[Record] = field(default_factory=list, repr=False)
    control: list[Record] = field(default_factory=list, repr=False)
    profiles: Sequence[str] = DEFAULT_PROFILES
    counts: set[PartitionCount] = field(default_factory=set, repr=False)
    undecided: list[Record] = field(default_factory=list, repr=False)
    """Requests whose outcome may lie behind an open transaction."""
    spans: Sequence[Span] = ()
    """Of the timer topic, if not all of it was read."""
    is_excluded: bool = False
    """True if what lies before the spans is there, but was not asked for."""

    @property
    def topics(self) -> tuple[list[Record], ...]:
        return self.requests, self.deliveries, self.rejections, self.receipts, self.control

    def add(self, other: "History", moved: Callable[[Record], Record] = lambda record: record) -> None:
        """Add another history, and its profiles if it has more. `moved`: returns a record in its new place."""
        for ours, theirs in zip(self.topics, other.topics, strict=True):
            ours.extend(map(moved, theirs))
        self.counts |= other.counts
        self.profiles = max(self.profiles, other.profiles, key=len)
        self.undecided += map(moved, other.undecided)

    def seen(self, spark: SparkSession, spans: Sequence[Span] = SPANS, excluded: Collection[Span] = ()) -> Observations:
        """Return what a run reads. As in a run, the plan of the timer topic's rows ends here."""
        hidden = [(record.origin,) for record in self.undecided]
        requested, delivered, rejected, told, control = (
            spark.createDataFrame(records, RECORDS_DDL) for records in self.topics
        )
        return Observations(
            parsed=requests(requested, own_topics=OWN, profiles=self.profiles).localCheckpoint(),
            rejections=evidence.rejections(rejected, self.profiles),
            ends=[evidence.deliveries(delivered, counts=[*self.counts]), evidence.receipts(told)],
            pauses=pauses(control, "timer.requests") if self.control else None,
            deleted_before=[span for span in spans if span not in excluded],
            excluded_before=list(excluded),
            undecided=spark.createDataFrame(hidden, "origin STRING") if hidden else None,
            holes=holes(spans),
            has=self.features,
        )

    @property
    def features(self) -> frozenset[Feature]:
        """Every feature, but series, moves and pauses only if a request has them, as the audit finds them."""
        recurs = any(name.lower() in RECURRING for record in self.requests for name, _ in record.headers)
        actions = {record.header(names.ACTION) for record in self.requests}
        needs = {
            Feature.SERIES: recurs,
            Feature.MOVES: not actions.isdisjoint({b"move", b"pause", b"resume"}),
            Feature.PAUSES: not actions.isdisjoint({b"pause", b"resume"}),
        }
        return frozenset(feature for feature in Feature if needs.get(feature, True))

    def between(self, first_ms: int, behind_ms: int) -> "History":
        """The records with a timestamp in [first, behind)."""
        inside = History(profiles=self.profiles)
        for ours, theirs in zip(inside.topics, self.topics, strict=True):
            ours.extend(record for record in theirs if first_ms <= record.timestamp_ms < behind_ms)
        return inside

    def judged(
        self, spark: SparkSession, *, spans: Sequence[Span] = SPANS, excluded: Collection[Span] = (), **limits: Any
    ) -> DataFrame:
        """The audit without Kafka: one row per origin, with its class. Settles at once, unless `limits` say more."""
        inside = build_outcomes(self.seen(spark, spans, excluded)).where(
            ~is_receipt_only() & (F.col("requested") | ~is_outside("timer.requests", spans))
        )
        return classify(inside, AuditLimits(**{"as_of_ms": AS_OF_MS, "settle_ms": 0, "tolerance_ms": 1_000, **limits}))
