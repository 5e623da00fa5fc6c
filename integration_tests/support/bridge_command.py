"""Topics of a test's own, `timer-bridge` as a command, and what tests send to it and read from it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Producer

from integration_tests.support.patience import PATIENCE_S, until
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Receiver

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from integration_tests.conftest import Broker

COMMAND = str(Path(sys.executable).with_name("timer-bridge"))
SOON: tuple[str, bytes] = ("timer-delay-ms", b"200")


class Names:
    """Topics and a group of a test's own."""

    def __init__(self) -> None:
        mark = uuid4().hex[:8]
        self.timers, self.rejected, self.target = f"timers-{mark}", f"rejected-{mark}", f"orders-{mark}"
        self.journal, self.receipts = f"journal-{mark}", f"receipts-{mark}"
        self.control = f"control-{mark}"
        self.group = f"group-{mark}"
        self.arguments = ["--group", self.group, "--partitions", "2", "--timer-topic", self.timers]
        self.arguments += ["--rejected-topic", self.rejected, "--journal-topic", self.journal]
        self.arguments += ["--receipts-topic", self.receipts, "--control-topic", self.control]

    def create_target(self, broker: "Broker", *more: str) -> None:
        """Create the target topic, and more of that kind: one partition, timestamps by the broker's clock."""
        Admin(broker.bootstrap_servers).create_topics([self.target, *more], partitions=1, settings=BROKER_CLOCK)


def send(broker: "Broker", names: Names, value: bytes | None, *headers: tuple[str, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(names.timers, value, b"key", headers=list(headers))
    assert producer.flush(PATIENCE_S) == 0


def read(broker: "Broker", topic: str, count: int) -> list[Any]:
    """The first `count` committed records of a topic with one or more partitions."""
    found: list[Any] = []

    def have_come() -> bool:
        found.extend(reader.messages(0.5))
        return len(found) >= count

    with Receiver(broker.bootstrap_servers, [topic]) as reader:
        until(have_come, f"{count} records of {topic}")
    return found[:count]


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **environment},
    )


def get(port: int, path: str, *, token: str = "", body: object = None) -> tuple[int, Any]:
    """Return status and body, as text unless it is JSON; status 0 if the port does not answer.

    body: sent as JSON by a POST, unless it is None.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    if body is not None:
        asked.data = json.dumps(body).encode()
        asked.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310  (our own)
            return answer.status, _content(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, _content(refused)
    except OSError:
        return 0, None


def _content(answer: "HTTPResponse | urllib.error.HTTPError") -> Any:
    text = answer.read().decode()
    return json.loads(text) if answer.headers.get_content_type() == "application/json" else text
