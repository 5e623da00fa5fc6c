"""Known faults: an operator's table of origins, each with a reason and an end (docs/audit.md#waivers)."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.errors import UsageError

_NEEDED = ("origin", "reason", "until")


def waived(path: Path | None, as_of_ms: int) -> DataFrame | None:
    """Return the origins that are waived at this time, as `origin`; None if there are none. Raises UsageError."""
    origins = [] if path is None else sorted({origin for origin, until_ms in read(path) if until_ms > as_of_ms})
    if not origins:
        return None
    return SparkSession.active().createDataFrame(pa.table({"origin": origins}))


def read(path: Path) -> Iterator[tuple[str, int]]:
    """Yield origin and end of each waiver: a date, or a time with its zone. Raises UsageError, with the row."""
    try:
        data = path.read_bytes()
    except OSError as wrong:
        raise UsageError(f"--waivers {path}: {wrong.strerror}: give a file of this machine") from None
    try:
        if path.suffix == ".parquet":
            rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        else:
            rows = list(csv.DictReader(io.StringIO(data.decode())))
    except (pa.ArrowInvalid, UnicodeDecodeError, csv.Error) as wrong:
        raise UsageError(f"--waivers {path}: {wrong}: give CSV, or Parquet in a file named .parquet") from wrong
    for number, row in enumerate(rows, 1):
        if not all(row.get(name) for name in _NEEDED):
            raise UsageError(f"--waivers {path}: row {number} lacks a value: give origin, reason and until")
        yield str(row["origin"]).strip(), _until_ms(path, number, row["until"])


def _until_ms(path: Path, number: int, until: object) -> int:
    """Return epoch ms. A date means its end (UTC): a waiver holds on the day that it names."""
    try:
        text = until.isoformat() if isinstance(until, date) else str(until).strip()
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--waivers {path}: row {number}: until {until!r} is not a time: give 2026-06-01") from None
    if len(text) == len("2026-06-01"):
        return int(moment.replace(tzinfo=UTC).timestamp() * 1000) + 86_400_000
    if moment.tzinfo is None:
        raise UsageError(f"--waivers {path}: row {number}: until {until!r} has no time zone: add Z for UTC")
    return int(moment.timestamp() * 1000)
