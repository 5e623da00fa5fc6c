"""The open timers between two parts of an audit: read when due or named, appended and merged, never all rewritten.

    part 7 writes   open/7: what is open now, sorted by wake_ms       gone/7: rows of open/1..6 that no longer count
    part 8 reads    wake_ms in (time of 7, time of 8]                 all of these
                    wake_ms later                                     two narrow columns; then those that are concerned

A log-structured merge (docs/design/audit.md#open-timers): a row is written about log2(parts) times.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import CLOSED, EVIDENCE, GONE, OPEN
from schemas.tables import Table
from spark_jobs.audit_rules import series
from spark_jobs.audit_rules.coverage import parse_origin
from spark_jobs.audit_rules.requests import Feature
from spark_jobs.errors import JobFailedError
from spark_jobs.platform import files
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import Keep, as_table, folder, read_tables, write_table

STATE = "state"
_FILE = "part.json"
_MOST_RANGES = 500
"""Most ranges of offsets that a search in closed evidence names."""
_RANGE = 1 << 16


@dataclass(frozen=True)
class Run:
    """One part of `open` and of `gone`, and how many rows they have."""

    part: str
    rows: int
    gone: int


@dataclass(frozen=True)
class OpenTimers:
    """The timers that are open after a part. `part` None: before the first one."""

    out: Location
    part: str | None = None
    number: int = 0
    as_of_ms: int = -(2**62)
    open: int = 0
    runs: tuple[Run, ...] = ()
    has: frozenset[Feature] = frozenset()
    """Features of the open timers."""

    @classmethod
    def after(cls, out: Location, part: str | None) -> "OpenTimers":
        """Return what is open after `part`. Raises JobFailedError if it has no state."""
        if part is None:
            return cls(out)
        data = files.read(out / STATE / part / _FILE)
        if data is None:
            raise JobFailedError(f"--out {out}: {part} has no state: give a new --out")
        told = json.loads(data)
        has = frozenset(feature for feature in Feature if told.pop(f"has_{feature}", False))
        return cls(**{**told, "out": out, "part": part, "runs": tuple(Run(**run) for run in told["runs"]), "has": has})

    def commit(self) -> None:
        assert self.part is not None
        told = {name: value for name, value in asdict(self).items() if name not in ("out", "part", "has")}
        told |= {f"has_{feature}": True for feature in sorted(self.has)}
        files.write(self.out / STATE / self.part / _FILE, json.dumps(told).encode())

    def due(self, as_of_ms: int) -> DataFrame:
        """Return the rows whose time has come (OPEN)."""
        return self._rows(self._folders(self.runs), F.col("wake_ms").between(self.as_of_ms + 1, as_of_ms))

    def concerned(
        self, as_of_ms: int, origins: DataFrame, chains: DataFrame, families: DataFrame, keep: Keep
    ) -> DataFrame | None:
        """Return the rows that sleep, and that new records concern (OPEN); None if there are none.

        origins: a column `origin`, named by new records. chains: a column `chain`, the ids of new requests. families: a
        column `family`, of rows that are due.
        """
        asleep, folders = F.col("wake_ms") > as_of_ms, self._folders(self.runs)
        if not folders:
            return None
        copies = [F.col("claims.place").alias("copies")] if Feature.CLAIMS in self.has else []
        file = F.col("_metadata.file_name").alias("file")
        narrow = self._rows(folders, asleep, "origin", "part", "family", "chain", *copies, file)
        named = narrow.join(origins, "origin", "left_semi")
        if Feature.CLAIMS in self.has:
            # A refused copy concerns its timer; an open claim its timer, and the timer's other claims.
            copied = narrow.withColumn("copy", F.explode("copies"))
            copied = copied.join(origins.select(F.col("origin").alias("copy")), "copy", "left_semi").drop("copy")
            named = named.unionByName(copied)
            families = named.select("family").unionByName(families)
            if Feature.SERIES in self.has:  # a receipt, or a cancel by origin, names the request of an occurrence
                families = families.unionByName(origins.select(series.of(F.col("origin")).alias("family")))
            named = named.unionByName(narrow.join(families, "family", "left_semi"))
        if Feature.IDS in self.has:
            chains = named.where(F.col("chain").isNotNull()).select("chain").unionByName(chains)
            same_id = narrow.where(F.col("chain").isNotNull()).join(chains.hint("shuffle_hash"), "chain", "left_semi")
            named = named.unionByName(same_id)
        hits = keep(named.select("origin", "file").distinct())
        names = {row.file for row in hits.select("file").distinct().collect()}
        if not names:
            return None
        places = [at / name for at in folders for name in files.found(at, "*.parquet") if name in names]
        return self._rows(places, asleep).join(hits.select("origin"), "origin", "left_semi")

    def written(self, new: DataFrame, gone: DataFrame | None, after: "OpenTimers", rows: int) -> "OpenTimers":
        """Write the new open rows (OPEN), `rows` of them, and which earlier ones are gone. Return `after` with runs."""
        assert after.part is not None
        keep = list(self.runs)
        merge: list[Run] = []
        while keep and keep[-1].rows <= 2 * (rows + sum(run.rows for run in merge)):
            merge.append(keep.pop())
        asleep = F.col("wake_ms") > after.as_of_ms
        tombs = [] if gone is None else [gone]
        if any(run.gone for run in merge):
            tombs.append(self._gone(merge, asleep))
        dead = reduce(DataFrame.unionByName, tombs) if tombs else None
        if any(run.rows for run in merge):
            old = self._rows(self._folders(merge), asleep)
            if gone is not None:
                old = old.join(gone.select("origin"), "origin", "left_anti")
            new = new.unionByName(old)
        count = _write(new.sortWithinPartitions("wake_ms"), after.out, OPEN, after.part)
        gone_count = _write(dead, after.out, GONE, after.part) if dead is not None and keep else 0
        return replace(after, runs=(*keep, Run(after.part, count, gone_count)))

    def delete_unused(self, *others: "OpenTimers") -> None:
        """Delete the parts of `open` and `gone` that neither this state nor the others use."""
        used = {run.part for state in (self, *others) for run in state.runs}
        level = "/*" * (self.part or "").count("/")
        for table in (OPEN, GONE):
            kept = self.out / table.name
            files.delete(*(kept / part for part in files.found(kept, f"*{level}") if part not in used))

    def _folders(self, runs: Iterable[Run]) -> list[Location]:
        return [folder(self.out, OPEN, run.part) for run in runs if run.rows]

    def _rows(self, places: Sequence[Location], where: Column, *columns: Column | str) -> DataFrame:
        """Return the rows of `open` in these files or folders that count; `columns`: only these, with `part`."""
        rows = read_tables(OPEN, places).where(where).select(*(columns or ("*",)))
        if not any(run.gone for run in self.runs):
            return rows
        gone = self._gone(self.runs, where).select("origin", F.col("part").alias("gone_in"))
        counts = (rows["origin"] == gone["origin"]) & (rows["part"] < gone["gone_in"])
        return rows.join(gone, counts, "left_anti")

    def _gone(self, runs: Iterable[Run], where: Column) -> DataFrame:
        places = [folder(self.out, GONE, run.part) for run in runs if run.gone]
        return read_tables(GONE, places).where(where)


def closed_evidence(out: Location, before: int, origins: DataFrame) -> DataFrame:
    """Return the last evidence of these origins, of timers that were closed in a part before the number `before`.

    origins: few, persisted. Files and pages without such offsets are not read.
    """
    _, partition, offset = parse_origin()
    by_range = origins.groupBy(partition, F.floor(offset / _RANGE))
    ranges = by_range.agg(F.min(offset), F.max(offset)).limit(_MOST_RANGES).collect()
    is_near = F.lit(len(ranges) == _MOST_RANGES)
    for at, _, low, high in ranges:
        is_near |= (F.col("at_partition") == at) & F.col("at_offset").between(low, high)
    history = read_tables(CLOSED, [folder(out, CLOSED)]).where((F.col("part") < before) & is_near)
    closed = history.join(origins, "origin", "left_semi")
    last = closed.groupBy("origin").agg(F.max_by(F.struct(*EVIDENCE.arrow().names[1:]), "part").alias("last"))
    return as_table(last.select("origin", "last.*"), EVIDENCE)


def _write(rows: DataFrame, out: Location, table: Table, part: str) -> int:
    """Write the rows and return their number."""
    seen = Observation(table.name)
    write_table(rows.observe(seen, F.count("*").alias("rows")), out, table, part)
    return int(seen.get["rows"])
