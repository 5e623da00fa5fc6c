"""The embedded broker keeps its data over a restart, and ends with its process however that ends."""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.dev.embedded_kafka import EmbeddedKafka, find_java
from bridge.dev.kafka_jars import JARS
from bridge.errors import BridgeError
from integration_tests.conftest import JARS_CACHE, ROOT, RUN, missing
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from schemas.maven_jars import ensure

pytestmark = pytest.mark.broker


# As from a terminal: a shell's background processes would ignore Ctrl-C.
HOLDER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from bridge.dev.embedded_kafka import EmbeddedKafka
with EmbeddedKafka(Path(sys.argv[1]), jars_cache=Path(sys.argv[2])) as kafka:
    print(kafka.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def jars_cache() -> Path:
    """Java and the jars are there."""
    try:
        ensure(JARS, JARS_CACHE, java=find_java())
    except BridgeError as error:
        missing(f"no embedded broker: {error}")
    return JARS_CACHE


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
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGINT))]
)
def test_the_broker_ends_with_its_parent(end: signal.Signals, jars_cache: Path) -> None:
    folder = RUN / f"orphan-{end.name}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-c", HOLDER, str(folder), str(jars_cache)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        broker_pid = int(holder.stdout.readline())
        watch = os.pidfd_open(broker_pid)
        holder.send_signal(end)
        holder.wait(PATIENCE_S)
        ended, _, _ = select.select([watch], [], [], PATIENCE_S)
        os.close(watch)
    assert ended, f"broker {broker_pid} lives on"
