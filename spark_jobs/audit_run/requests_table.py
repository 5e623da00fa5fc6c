"""A table of one of Spark's catalogs with the current row of each request: `--table lake.audit.requests`.

Parts are merged after their commit: docs/design/audit.md#current-requests-in-a-table
"""

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import REQUESTS
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.audit_run.audit_folder import all_parts
from spark_jobs.platform.tables import read_table, spark_schema

Merge: TypeAlias = Callable[[str, str | None], None]
"""Merges the rows of REQUESTS as those of a part. The second argument is their folder; None: the whole table."""
_DAY = (
    "date_from_unix_date(CAST(IF(requested_ms BETWEEN 0 AND 253402300799999, requested_ms DIV 86400000, NULL) AS INT))"
)
"""Null outside of 1970 to 9999, as senders may choose timestamps for which there is no date."""


def opened(arguments: AuditArguments) -> Merge:
    """Create the table, merge the parts that it lacks, and return what merges one. Do nothing without --table."""
    if arguments.table is None:
        return lambda *_: None
    spark = SparkSession.active()
    name = f"`{arguments.table.replace('.', '`.`')}`"
    columns = f"{spark_schema(REQUESTS).toDDL()}, requested_day DATE, part STRING"
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg PARTITIONED BY (requested_day)")

    def merge(part: str, folder: str | None) -> None:
        rows = read_table(arguments.out, REQUESTS, folder)
        if rows.isEmpty():
            return
        fresh = rows.withColumns({"requested_day": F.expr(_DAY), "part": F.lit(part)})
        spark.sql(
            f"MERGE INTO {name} AS old USING {{fresh}} AS new ON old.origin = new.origin"
            " WHEN MATCHED AND old.part <= new.part THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            fresh=fresh,
        )

    of_topic = spark.table(name).where(F.col("topic") == arguments.timer_topic)
    (last,) = of_topic.agg(F.coalesce(F.max("part"), F.lit(""))).collect()[0]
    for part in all_parts(arguments.out):
        if part > last:
            merge(part, part)
    return merge
