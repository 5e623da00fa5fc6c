"""The embedded broker keeps its data over a restart, and ends with its process however that ends."""

import os
import select
import shutil
import subprocess
import sys

import pytest

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from integration_tests.conftest import JARS_CACHE, ROOT, RUN, kafka_jars
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


HOLDER = """
import sys
from pathlib import Path
from bridge.dev.embedded_kafka import EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1]), jars_cache=Path(sys.argv[2])) as kafka:
    print(kafka.pid, flush=True)
    sys.stdin.read()
"""


def test_stop_and_kill_keep_the_data_and_the_port_and_a_second_broker_on_the_folder_is_refused(
    own_kafka: EmbeddedKafka,
) -> None:
    address, first_pid = own_kafka.bootstrap_servers, own_kafka.pid
    cluster = Cluster(address)
    cluster.create("kept")
    second = EmbeddedKafka(own_kafka.folder, jars_cache=JARS_CACHE)
    with pytest.raises(BridgeError, match=f"{own_kafka.folder}: another Kafka runs on it"):
        second.start()
    for value, end in ((b"1", own_kafka.stop), (b"2", own_kafka.kill)):
        cluster.send("kept", value)
        cluster.flush()
        end()
        assert own_kafka.pid is None
        own_kafka.start()
    assert cluster.values("kept") == [b"1", b"2"]
    assert own_kafka.bootstrap_servers == address
    assert own_kafka.pid not in (None, first_pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_the_broker_ends_with_its_parent() -> None:
    kafka_jars()
    folder = RUN / "orphan"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-c", HOLDER, str(folder), str(JARS_CACHE)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        broker_pid = int(holder.stdout.readline())
        watch = os.pidfd_open(broker_pid)
        holder.kill()
        holder.wait(PATIENCE_S)
        ended, _, _ = select.select([watch], [], [], PATIENCE_S)
        os.close(watch)
    assert ended, f"broker {broker_pid} lives on"
