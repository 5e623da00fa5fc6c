"""The history of what an audit finds fault with, from a real broker and a table as the audit writes it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration_tests.conftest import Broker
from integration_tests.support.cluster import Cluster
from schemas.receipts import Receipt
from schemas.tables import REQUESTS
from scripts.chaos.fault_evidence import exceptions

pytestmark = pytest.mark.broker


def test_each_exception_has_all_that_kafka_holds_of_it_and_nothing_else(kafka: Broker, tmp_path: Path) -> None:
    cluster = Cluster(kafka.bootstrap_servers)
    timers, real, receipts = (cluster.topic(name) for name in ("timers", "real", "receipts"))
    for id_ in (b"x", b"y"):
        cluster.send(timers, b"v", headers=[("timer-id", id_), ("timer-topic", real.encode())])
        cluster.send(timers, b"", headers=[("timer-id", id_), ("timer-action", b"cancel")])
    mine, cancel, other, _ = (f"{timers}/0/{offset}" for offset in range(4))
    for origin in (mine, other):
        cluster.send(real, b"v", headers=[("timer-origin", origin.encode())])
    cluster.send(receipts, Receipt(kind="cancelled", at_ms=1, request=cancel, origin=mine).to_bytes())
    cluster.send(receipts, Receipt(kind="delivered", at_ms=1, request=other, origin=other).to_bytes())
    cluster.flush()
    rows = [
        {"origin": f"{timers}/0/99", "class": "pending", "faults": []},
        {"origin": mine, "class": "cancelled-but-delivered", "faults": ["cancelled-but-delivered"], "ended_by": cancel},
        {"origin": other, "class": "delivered", "faults": []},
    ]
    (tmp_path / "requests").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS.arrow()), tmp_path / "requests" / "part.parquet")

    found, open_ = exceptions(kafka.bootstrap_servers, tmp_path, {timers, real}, receipts)
    assert found["row"] == {name: value for name, value in rows[1].items() if value}
    told = {record["place"]: record for record in found["records"]}
    assert len(told) == len(found["records"])
    assert told.keys() == {mine, cancel, f"{real}/0/0", f"{receipts}/0/0"}
    assert told[mine]["headers"] == {"timer-id": "x", "timer-topic": real}
    assert told[mine]["value"] == "v"
    assert told[mine]["clock"] == "CreateTime"
    assert open_ == {"row": {"origin": f"{timers}/0/99", "class": "pending"}, "records": []}
