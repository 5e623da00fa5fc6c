"""Spark's commands as the docs show them, on one small history: each does its work and ends well."""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.dev.embedded_kafka import EmbeddedKafka
from integration_tests.product.test_docs import DOCS
from integration_tests.product.test_docs_commands import OF_SPARK, Shown, commands_in
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import until
from scripts.common.processes import BridgeProcess

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
ELSEWHERE = {"spark://HOST:7077": "a cluster: test_spark_cluster"}
WITHOUT_END = {"--follow"}
FILES = {"bridge.toml", "orders.csv", "pending.parquet", "audit", "imported"}
"""The session's own folder is another one."""


def to_be_run() -> list[Shown]:
    shown = [each for page in DOCS for each in commands_in(page) if each.words[0] in OF_SPARK]
    ending = [each for each in shown if "--stream" not in each.words or "--available-now" in each.words]
    return [each for each in ending if not ELSEWHERE.keys() & set(each.words)]


def here(word: str, servers: str, folder: Path) -> str:
    if word.endswith((":9092", ":PORT")):
        return servers
    if word.startswith("/") or word in FILES:
        return f"{folder}/{word.lstrip('/')}"
    return {"N": "1"}.get(word, word)


@pytest.mark.usefixtures("spark")
def test_spark_commands_succeed(own_kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers, cluster = own_kafka.bootstrap_servers, Cluster(own_kafka.bootstrap_servers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMER_BRIDGE_BOOTSTRAP_SERVERS", servers)
    Path("bridge.toml").write_text(f'bootstrap_servers = "{servers}"')
    with Path("orders.csv").open("w", newline="") as file:
        due = datetime.now(UTC) + timedelta(days=1)
        csv.writer(file).writerows([("when", "body", "number"), (due.isoformat(), "a", 1), (due.isoformat(), "b", 2)])

    def timer_bridge(*words: str) -> None:
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, f"{' '.join(words)}: {ended.output}{ended.exception}"

    cluster.create("orders", 2, message_timestamp_type="LogAppendTime")
    with BridgeProcess(tmp_path, servers):
        for number in range(4):
            timer_bridge("send", "orders", "v", "--in", "1s" if number else "2h", "--id", f"id-{number}")
        until(lambda: len(cluster.read("orders")) == 3)
    timer_bridge("export", "timer-data", "pending.parquet")
    assert pq.read_table("pending.parquet").num_rows == 1
    shown = to_be_run()
    assert {each.words[0] for each in shown} == OF_SPARK.keys()
    for each in shown:
        words = [here(word, servers, tmp_path) for word in each.words[1:] if word not in WITHOUT_END]
        timer_bridge(each.words[0], *words)
    asked = len(cluster.read("timer.requests"))
    assert asked == 4 + 2 + 2, "each sent, each row of the table, and what was pending, into two folders of imports"
