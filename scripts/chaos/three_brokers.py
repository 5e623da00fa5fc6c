"""Three embedded brokers: after a kill, another one becomes leader.

node 1   controller and broker, never killed          node 2, 3   brokers
three copies of everything, two of which have to be in step
link n   a listener of each broker, which the clients of this link reach through a proxy (scripts.chaos.proxy)
"""

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient

from bridge.dev.embedded_kafka import HOST, PROPERTIES, EmbeddedKafka, free_port
from bridge.dev.kafka_jars import DEFAULT_CACHE
from scripts.chaos.proxy import Proxies, Proxy

_PROTOCOLS = "listener.security.protocol.map"
_COPIES = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class ThreeBrokers:
    """A cluster that runs inside the `with`."""

    def __init__(self, folder: Path, *, links: int = 0, jars_cache: Path = DEFAULT_CACHE) -> None:
        self._folder, self._jars_cache = folder, jars_cache
        shutil.rmtree(folder, ignore_errors=True)
        ports = iter(_free_ports(4 + 6 * links))
        self._proxies = Proxies()
        self.links: list[list[Proxy]] = [[] for _ in range(links)]
        """For each link, the proxies of the three brokers."""
        controller_port = next(ports)
        self._voters = {"controller.quorum.voters": f"1@{HOST}:{controller_port}"}
        controller = {"listeners": f",CONTROLLER://{HOST}:{controller_port}"}
        self.nodes = [self._node(1, ports, controller)]
        for node_id in (2, 3):
            self.nodes.append(self._node(node_id, ports, {"process.roles": "broker", "node.id": str(node_id)}))

    def bootstrap_of(self, link: int) -> str:
        """Return the addresses of all brokers through the proxies of a link."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.links[link])

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader's node id. Retries for a new topic that not every broker knows."""
        admin: Any = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        while not (partitions := admin.list_topics(topic, timeout=30).topics[topic].partitions):
            time.sleep(0.05)
        return int(partitions[partition].leader)

    def node(self, node_id: int) -> EmbeddedKafka:
        return self.nodes[node_id - 1]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            ends.callback(self._stop)
            self._proxies.start()
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
        self._proxies.stop()

    def _node(self, node_id: int, ports: Iterator[int], properties: dict[str, str]) -> EmbeddedKafka:
        port = next(ports)
        listeners = advertised = f"PLAINTEXT://{HOST}:{port}"
        protocols = PROPERTIES[_PROTOCOLS]
        for number, proxies in enumerate(self.links):
            proxy = Proxy(next(ports), next(ports))
            proxies.append(proxy)
            self._proxies.add(proxy)
            listeners += f",LINK{number}://{HOST}:{proxy.target_port}"
            advertised += f",LINK{number}://{HOST}:{proxy.port}"
            protocols += f",LINK{number}:PLAINTEXT"
        own = _COPIES | self._voters | properties
        own |= {"listeners": listeners + properties.get("listeners", ""), "advertised.listeners": advertised}
        own[_PROTOCOLS] = protocols
        folder = self._folder / str(node_id)
        return EmbeddedKafka(folder, port=port, heap_mb=256, properties=own, jars_cache=self._jars_cache)

    def _join_cluster(self, node: EmbeddedKafka) -> None:
        """Format the node's folder for the cluster of node 1."""
        lines = (self.nodes[0].folder / "data" / "meta.properties").read_text().splitlines()
        cluster_id = next(line for line in lines if line.startswith("cluster.id="))
        data: Path = node.folder / "data"
        data.mkdir(parents=True)
        others: Sequence[str] = ("version=1", cluster_id, f"node.id={self.nodes.index(node) + 1}")
        (data / "meta.properties").write_text("\n".join(others) + "\n")


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port(taken=set(ports)))
    return ports
