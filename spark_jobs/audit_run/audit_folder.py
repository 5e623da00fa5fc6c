"""The folder of an audit by day or batch: which parts are done, and which one was begun.

audit.json   its kind                              plan.json   the part that a run has begun; deleted at its end
spans/PART   written last: the part is done        without it, the next run deletes what was written of the part
current_requests.sql                               a view for users: the last row of each request
"""

import json
from typing import Literal, TypeAlias

from schemas.audit_state import BATCHES, CLOSED, DAYS, GONE, OPEN, OPEN_VERDICTS, SPANS, UNFINISHED_MINUTES
from schemas.tables import HOURS, LATENESS, MINUTES, REQUESTS, TOPICS
from spark_jobs.audit_run.open_timers import STATE
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import parts_of

Kind: TypeAlias = Literal["daily", "stream", "older"]
_VERSION = 5
"""Of the state. 5: spans have since_ms."""
SCRATCH = "scratch"
"""Rows of the steps of a run, deleted at its end."""
_TABLES = (
    *(SPANS, DAYS, BATCHES, REQUESTS, LATENESS, TOPICS, HOURS, MINUTES),
    *(OPEN, GONE, CLOSED, OPEN_VERDICTS, UNFINISHED_MINUTES),
)
_MARKER, _PLAN, _VIEW = "audit.json", "plan.json", "current_requests.sql"
_CURRENT = """\
CREATE OR REPLACE TEMPORARY VIEW current_requests AS
SELECT * EXCEPT (nth) FROM (
  SELECT *, row_number() OVER (PARTITION BY origin ORDER BY {last_first}) AS nth
  FROM parquet.`{out}/requests` LEFT SEMI JOIN parquet.`{out}/spans` USING ({part})
) WHERE nth = 1;
"""
"""A part without spans is not done, so its rows do not count."""


def kind_of(out: Location) -> Kind | None:
    """Return which audit the folder holds; `older`: one that this version cannot continue; None: none by parts."""
    told = files.read(out / _MARKER)
    if told is None:
        return "older" if files.found(out, "checkpoint") or files.found(out / SPANS.name, "day=*") else None
    marker = json.loads(told)
    kind: Kind = marker["kind"] if marker["version"] == _VERSION else "older"
    return kind


def all_parts(out: Location) -> list[str]:
    """Return all parts that are done, oldest first; none of an audit in one run."""
    return parts_of(out, SPANS, "day=*/batch=*" if kind_of(out) == "stream" else "day=*")


def done_parts(out: Location) -> list[str]:
    """Return the parts that are done, oldest first. For a stream: those of the last day that has any."""
    if kind_of(out) != "stream":
        return all_parts(out)
    days = files.found(out / SPANS.name, "day=*")[::-1]
    return next((found for day in days if (found := parts_of(out, SPANS, f"{day}/batch=*"))), [])


def open_folder(out: Location, kind: Kind) -> None:
    """Write the view of its requests; a new folder gets its kind."""
    part, last_first = ("day, batch", "day DESC, batch DESC") if kind == "stream" else ("day", "day DESC")
    files.write(out / _VIEW, _CURRENT.format(out=files.qualified(out), part=part, last_first=last_first).encode())
    if not files.exists(out / _MARKER):
        files.write(out / _MARKER, json.dumps({"version": _VERSION, "kind": kind}).encode())


def begin_part(out: Location, part: str) -> None:
    """Record that the part is begun. Delete what an earlier run left of it, SPANS first."""
    files.write(out / _PLAN, json.dumps({"part": part}).encode())
    files.delete(*(out / table.name / part for table in _TABLES), out / STATE / part)


def begun_part(out: Location) -> str | None:
    """Return the part that a run has begun and not ended."""
    told = files.read(out / _PLAN)
    return None if told is None else str(json.loads(told)["part"])


def end_part(out: Location) -> None:
    files.delete(out / _PLAN)


def undo_part(out: Location) -> None:
    """Delete what was written of a part that is begun and not done."""
    part = begun_part(out)
    if part is not None and not parts_of(out, SPANS, part):
        begin_part(out, part)
        end_part(out)
