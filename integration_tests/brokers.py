"""Three embedded brokers: whatever one of them leads, another leads soon after its kill.

node 1   controller and broker, never killed          node 2, 3   brokers
three copies of everything, two of which have to be in step
"""

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient

from bridge.embedded import HOST, EmbeddedKafka, free_port
from integration_tests.conftest import FAST_RESTART, JARS_CACHE, RUN

_COPIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class ThreeBrokers:
    """Running when entered."""

    def __init__(self, name: str) -> None:
        self._folder = RUN / f"kafka-{name}"
        shutil.rmtree(self._folder, ignore_errors=True)
        controller_port = free_port()
        voters = {"controller.quorum.voters": f"1@{HOST}:{controller_port}"}
        ports = [free_port(taken={controller_port}) for _ in range(3)]
        first = {"listeners": f"PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{controller_port}"}
        self.nodes = [self._node(1, ports[0], voters | first)]
        for node_id, port in ((2, ports[1]), (3, ports[2])):
            own = {"process.roles": "broker", "node.id": str(node_id), "listeners": f"PLAINTEXT://{HOST}:{port}"}
            self.nodes.append(self._node(node_id, port, voters | own))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Its node id, also where the cluster has just made the topic and not every broker knows."""
        admin: Any = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        while not (partitions := admin.list_topics(topic, timeout=30).topics[topic].partitions):
            time.sleep(0.05)
        return int(partitions[partition].leader)

    def node(self, node_id: int) -> EmbeddedKafka:
        return self.nodes[node_id - 1]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            ends.callback(self._stop)
            self.nodes[0].start()
            for node in self.nodes[1:]:
                self._join_cluster(node)
                node.start()
            ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for node in reversed(self.nodes):
            node.kill()

    def _node(self, node_id: int, port: int, properties: dict[str, str]) -> EmbeddedKafka:
        folder, all_ = self._folder / str(node_id), FAST_RESTART | _COPIES | properties
        return EmbeddedKafka(folder, port=port, heap_mb=256, properties=all_, jars_cache=JARS_CACHE)

    def _join_cluster(self, node: EmbeddedKafka) -> None:
        """Formats its folder for the cluster that node 1 has made."""
        lines = (self.nodes[0].folder / "data" / "meta.properties").read_text().splitlines()
        cluster_id = next(line for line in lines if line.startswith("cluster.id="))
        data: Path = node.folder / "data"
        data.mkdir(parents=True)
        others: Sequence[str] = ("version=1", cluster_id, f"node.id={self.nodes.index(node) + 1}")
        (data / "meta.properties").write_text("\n".join(others) + "\n")
