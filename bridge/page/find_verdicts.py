"""Read an audit's verdicts on timers from its tables. A program of its own, as they may be large: see audit_tables.

    question    place (the audit's --out), origins
    answer      verdicts, or reason

A part of a daily or streaming audit counts if it has spans, which are written last. Rows of later parts replace others.
"""

import posixpath
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from kafka_timer.headers import legal_topic

_COLUMNS = (
    *("origin", "class", "faults", "delivered_topic", "delivered_partition", "delivered_offset", "delivered_ms"),
    *("lateness_ms", "clock", "error"),
)
_FILE = "__filename"
"""pyarrow's name for the file of a row. Parts have their order in it."""
_OF_OCCURRENCE = "#.*"
"""The end of an occurrence's origin, which begins with that of its recurring timer."""


def verdicts(place: str, origins: list[str]) -> list[dict[str, Any]]:
    """Return the latest row of each origin, by origin. Raises OSError and pyarrow's errors."""
    system, folder = fs.FileSystem.from_uri(place if "://" in place else Path(place).absolute().as_uri())
    if system.get_file_info(f"{folder}/requests").type == fs.FileType.Directory:
        return _of_folder(system, folder, origins)
    topics = sorted({origin.rsplit("/", 2)[0] for origin in origins})  # an audit of several has a folder for each
    folders = [f"{folder}/{topic}" for topic in topics if legal_topic(topic.encode())]
    return [row for each in folders for row in _of_folder(system, each, origins)]


def _of_folder(system: fs.FileSystem, folder: str, origins: list[str]) -> list[dict[str, Any]]:
    requests = _files_by_part(system, f"{folder}/requests")
    done = set(requests) if "" in requests else set(_files_by_part(system, f"{folder}/spans"))  # "": one run
    files = [path for part, paths in requests.items() if part in done for path in paths]
    if not files:
        return []
    of_timer = pc.replace_substring_regex(ds.field("origin"), pattern=_OF_OCCURRENCE, replacement="")
    asked = of_timer.isin(pa.array(origins, pa.string()))
    rows = ds.dataset(files, filesystem=system, format="parquet").to_table([*_COLUMNS, _FILE], asked).to_pylist()
    latest = {row["origin"]: row for row in sorted(rows, key=lambda row: str(row.pop(_FILE)))}
    return [latest[origin] for origin in sorted(latest)]


def _files_by_part(system: fs.FileSystem, folder: str) -> dict[str, list[str]]:
    """Return the files of a table by part, such as day=2026-11-26/batch=000000007; by "" if it has no parts."""
    files: dict[str, list[str]] = {}
    for each in system.get_file_info(fs.FileSelector(folder, recursive=True)):
        if each.is_file and each.path.endswith(".parquet"):
            part = posixpath.dirname(posixpath.relpath(each.path, folder))
            files.setdefault(part, []).append(each.path)
    return files


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer the question of the program."""
    try:
        return {"verdicts": verdicts(asked["place"], asked["origins"])}
    except (OSError, pa.ArrowException) as wrong:
        return {"reason": str(wrong)}
