"""Verdicts of an audit, from tables as the audit writes them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.page.find_verdicts import verdicts
from schemas.audit_state import SPANS
from schemas.tables import REQUESTS

ORIGIN = "timer.requests/0/7"


def write(out: Path, part: str, *rows: dict[str, Any], is_done: bool = True) -> None:
    (out / "requests" / part).mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), REQUESTS.arrow()), out / "requests" / part / "a.parquet")
    if is_done:
        (out / "spans" / part).mkdir(parents=True)
        pq.write_table(SPANS.arrow().empty_table(), out / "spans" / part / "a.parquet")


def test_a_later_part_replaces_an_earlier_one_if_it_is_done(tmp_path: Path) -> None:
    others = [{"origin": f"timer.requests/0/{offset}", "class": "missing"} for offset in (0, 70)]
    write(tmp_path, "day=2026-03-01/batch=0000000009", *others, {"origin": ORIGIN, "class": "missing"})
    at = {"delivered_topic": "orders", "delivered_partition": 1, "delivered_offset": 3, "lateness_ms": 12}
    write(tmp_path, "day=2026-03-01/batch=0000000010", {"origin": ORIGIN, "class": "delivered", **at})
    write(tmp_path, "day=2026-03-02/batch=0000000011", {"origin": ORIGIN, "class": "early"}, is_done=False)
    (found,) = verdicts(str(tmp_path), [ORIGIN])
    assert (found["class"], found["delivered_offset"], found["lateness_ms"]) == ("delivered", 3, 12)
    assert verdicts(tmp_path.as_uri(), [ORIGIN]) == [found]
    assert verdicts(str(tmp_path), ["timer.requests/0/1"]) == []
    assert verdicts(str(tmp_path), []) == []


def test_an_audit_in_one_run_has_no_parts_and_a_recurring_timer_all_its_occurrences(tmp_path: Path) -> None:
    rows = [{"origin": origin, "class": "delivered"} for origin in (f"{ORIGIN}#2", ORIGIN, f"{ORIGIN}1")]
    write(tmp_path, "", *rows, is_done=False)
    assert [each["origin"] for each in verdicts(str(tmp_path), [ORIGIN])] == [ORIGIN, f"{ORIGIN}#2"]


def test_an_audit_of_several_timer_topics_has_a_folder_for_each(tmp_path: Path) -> None:
    write(tmp_path / "out" / "timer.requests", "", {"origin": ORIGIN, "class": "late"})
    write(tmp_path / "secret", "", {"origin": "../secret/0/7", "class": "early"})
    out = str(tmp_path / "out")
    assert [each["class"] for each in verdicts(out, [ORIGIN, "../secret/0/7", "./0/7"])] == ["late"]
    with pytest.raises(FileNotFoundError):
        verdicts(out, ["other/0/7"])
