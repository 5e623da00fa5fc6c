"""`python -m scripts.bench.audit_pending`: the time of a part of an audit, with many timers pending and with none.

    part 1    PENDING requests, due in 30 days                                  not measured
    part 2    NEW requests that are due, half of them with ids; delivered       measured, on top of part 1 and alone

Spark makes the records itself, so no broker is part of the time. Both are measured in turns, in one session: the ratio
shows what pending timers cost, whatever the load of the machine.

    python -m scripts.bench.audit_pending --new 1000000 --pending 10000000
    python -m scripts.bench.audit_pending --stream --new 10000           batches of a stream instead of days
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bridge.errors import BridgeError
from schemas import headers as names
from scripts.common import command
from spark_jobs.audit_run import batches, read_plan
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.audit_folder import AuditFolder, done_parts
from spark_jobs.audit_run.observe import PartPlan, judge_part
from spark_jobs.kafka.admin import Cluster, Span
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.session import session
from spark_jobs.platform.tables import RECORDS_DDL, empty_table

FOLDER = Path(".run/audit-pending")
TIMERS, TARGET = "timer.requests", "orders"
PARTITIONS = 4
DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


class MadeTopics(Cluster):
    """Topics whose records Spark makes. Requests below `pending` (an offset of each partition) are due later."""

    def __init__(self, pending: int) -> None:
        self.partitions = {TIMERS: PARTITIONS, TARGET: PARTITIONS, "timer.rejected": 1, "timer.receipts": 1}
        self.pending = pending
        self.ends = {TIMERS: pending, TARGET: 0}

    def spans(self, topics: Iterable[str], *, from_ms: int | None = None, to_ms: int | None = None) -> list[Span]:  # noqa: ARG002
        return [Span(topic, at, 0, self.ends.get(topic, 0)) for topic in topics for at in range(self.partitions[topic])]

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "1")

    def unstable_spans(self, spans: Iterable[Span]) -> list[Span]:  # noqa: ARG002
        return []

    def compacted(self, topics: Iterable[str]) -> list[str]:  # noqa: ARG002
        return []

    def last_partition_since_ms(self, topics: Iterable[str]) -> dict[str, int]:  # noqa: ARG002
        """Spark places the records, so that no key chooses a partition."""
        return {}

    def read(self, spark: SparkSession, _: KafkaAccess, spans: Sequence[Span], **__: bool) -> DataFrame:
        """Return what `read_records` would."""
        found = [self._records(spark, span) for span in spans if span.start < span.end]
        rows = empty_table(spark, RECORDS_DDL)
        for more in found:
            rows = rows.unionByName(more)
        return rows

    def _records(self, spark: SparkSession, span: Span) -> DataFrame:
        is_request = span.topic == TIMERS
        number = F.col("id") if is_request else F.col("id") + self.pending
        due_ms = F.when(number < self.pending, F.lit(NOW_MS + 30 * DAY_MS)).otherwise(F.lit(NOW_MS))
        headers = {"traceparent": F.concat(F.lit("00-"), number)}
        if is_request:
            id_ = F.when(number % 2 == 0, F.concat(F.lit("order-"), number))
            headers |= {names.TOPIC: F.lit(TARGET), names.DELIVER_MS: due_ms, names.ID: id_}
        else:
            headers |= {names.ORIGIN: F.concat_ws("/", F.lit(TIMERS), F.lit(span.partition), number)}
            headers |= {names.DELIVER_MS: due_ms, names.RELEASED_MS: due_ms, names.ROLLS: F.lit("0")}
        pairs = [
            F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in headers.items()
        ]
        present = F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull())
        return spark.range(span.start, span.end, 1, 8).select(
            F.lit(span.topic).alias("topic"),
            F.lit(span.partition).alias("partition"),
            F.col("id").alias("offset"),
            F.lit(NOW_MS + (0 if is_request else 3)).cast("bigint").alias("timestamp_ms"),
            F.lit("LogAppendTime").alias("clock"),
            F.lit(b"key").alias("key"),
            number.cast("string").cast("binary").alias("value"),
            present.alias("headers"),
        )


def part(spark: SparkSession, topics: MadeTopics, out: Path, number: int, *, stream: bool) -> int:
    """Make the part with this number, from 1 on. Return how many timers are open then."""
    arguments = AuditArguments(access=KafkaAccess("localhost:9092"), out=out, daily=not stream, stream=stream)
    at, as_of_ms = AuditFolder.opened(out, "stream" if stream else "daily"), NOW_MS + number * 60_000
    vars(read_plan)["read_records"] = topics.read
    if stream:
        vars(batches)["Cluster"] = lambda _: topics
        batches.Batches(arguments, at, lambda *_: None).next_batch(spark, as_of_ms)
        return int(batches.batch_row(out, done_parts(out)[-1])["open"])
    plan = PartPlan(f"day={number}", number, f"day={number - 1}" if number > 1 else None, as_of_ms)
    done = judge_part(spark, topics, arguments, plan)
    done.commit()
    return done.state.open


def measure(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    new, pending = args.new // PARTITIONS, args.pending // PARTITIONS
    figures: dict[str, list[float]] = {"alone": [], "on top": []}
    with session("audit_pending", master=f"local[{args.cores}]") as spark:
        made = {name: MadeTopics(waiting) for name, waiting in (("alone", 0), ("on top", pending))}
        for name, topics in made.items():
            part(spark, topics, folder / name, 1, stream=args.stream)
        for turn in range(args.turns + 1):  # the first compiles
            for name, topics in made.items():
                topics.ends = {TIMERS: topics.ends[TIMERS] + new, TARGET: topics.ends[TARGET] + new}
                started_s = time.perf_counter()
                is_open = part(spark, topics, folder / name, turn + 2, stream=args.stream)
                if turn:
                    figures[name].append(time.perf_counter() - started_s)
                if is_open != PARTITIONS * topics.pending:
                    raise BridgeError(f"{is_open} timers are open, not {PARTITIONS * topics.pending}")
    alone, on_top = (statistics.median(figures[name]) for name in ("alone", "on top"))
    return {"alone_s": round(alone, 1), "on_top_s": round(on_top, 1), "ratio": round(on_top / alone, 2)}


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--stream", action="store_true", help="batches of a stream instead of days")
    parser.add_argument("--new", type=int, default=100_000, help="requests of a part, and deliveries")
    parser.add_argument("--pending", type=int, default=1_000_000, help="timers that are open")
    parser.add_argument("--turns", type=int, default=3, help="measured parts of each kind")
    parser.add_argument("--cores", type=int, default=2, help="for Spark")
    args = parser.parse_args()
    return command.measured("audit-pending", FOLDER, lambda folder: measure(folder, args), 2)


if __name__ == "__main__":
    sys.exit(main())
