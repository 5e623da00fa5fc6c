"""The notebook of examples/audit, cell by cell, on tables as an audit writes them."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from schemas.tables import HOURS, REQUESTS, Table

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[3] / "examples" / "audit" / "lateness.ipynb"
HOUR_MS = 3_600_000


def write(folder: Path, table: Table, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.arrow()), folder / "part.parquet")


@pytest.mark.parametrize("day", ["", "day=2026-01-31"])
def test_it_draws_lateness_by_topic_and_hour(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    places = [("orders", 0, 10), ("orders", 1, 500), ("bills", 1, 30)]
    hours = [
        {"topic": topic, "hour_ms": hour * HOUR_MS, "deliveries": 2, "lateness_p99_ms": late}
        for topic, hour, late in places
    ]
    rows = [
        {
            "origin": f"t/0/{at}",
            "class": "delivered" if at else "late",
            "target": "orders",
            "due_ms": 5,
            "lateness_ms": late,
        }
        for at, late in enumerate((500, 10, 30))
    ]
    write(tmp_path / "hours" / day, HOURS, hours)
    write(tmp_path / "requests" / day, REQUESTS, rows)
    monkeypatch.setenv("AUDIT", str(tmp_path))
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.switch_backend("agg")
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["classes"].to_numpy().tolist() == [["delivered", 2], ["late", 1]]
    assert names["table"].fillna(-1).to_numpy().tolist() == [[-1, 30], [10, 500]]
    assert names["latest"]["origin"].tolist() == ["t/0/0", "t/0/2", "t/0/1"]
    image, colors = names["figure"].axes
    assert [label.get_text() for label in image.get_yticklabels()] == ["bills", "orders"]
    assert [label.get_text() for label in image.get_xticklabels()] == ["01-01 00:00", "01-01 01:00"]
    assert colors.get_ylabel() == "ms"
    plt.close(names["figure"])
