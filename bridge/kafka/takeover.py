"""End the open transactions of dynamic members that died, so that their partitions open at once.

    member a is killed --> its session ends --> we get its partitions --> a's offsets and journal are not stable
                                                --> fence a's producers --> Kafka aborts its transactions

Otherwise Kafka aborts them after the transaction time-out, which it checks every 10 s. An instance that only seemed
dead is fenced too. It joins again with new producers, as its membership has ended before.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock, Thread
from typing import Any

from confluent_kafka import KafkaException, Producer

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import error_of, explained, is_passing
from bridge.kafka.group import ConfluentGroup
from bridge.kafka.retry import CALL_S, Retrier, log
from bridge.ports import MAX_IN_FLIGHT

_LIMIT_S = 10.0
"""Seconds for the fence of a producer. Kafka aborts its transactions after 10 to 20 s itself."""


class Takeover:
    """Thread-safe. Knows the instances that were members of the group at an earlier look."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._group = ConfluentGroup(connection, retrier)
        self._known: set[str] = set()
        self._running = Lock()

    def look(self) -> None:
        """Learn who is a member. Raises BridgeError."""
        self._known |= self._members()

    def start(self) -> None:
        """Fence the producers of all instances that have left, in a thread of its own."""
        if self._running.acquire(blocking=False):
            Thread(target=self._run, name="takeover", daemon=True).start()

    def _run(self) -> None:
        try:
            gone = self._known - self._members() - {self._connection.instance}
            with ThreadPoolExecutor(MAX_IN_FLIGHT) as fencing:
                for instance in gone:
                    log.warning("instance %s has left the group: its open transactions are aborted", instance)
                    list(fencing.map(self._fence, [instance] * MAX_IN_FLIGHT, range(MAX_IN_FLIGHT)))
            self._known -= gone
        except BridgeError as error:
            log.warning("open transactions of an instance that died end by their time-out: %s", error)
        finally:
            self._running.release()

    def _members(self) -> set[str]:
        return {each.instance for each in self._group.members() if each.instance}

    def _fence(self, instance: str, number: int) -> None:
        """End the transaction of a producer. Raises BridgeError."""
        config = clients.producer(replace(self._connection, instance=instance), number)
        producer: Any = clients.make(Producer, config, self._retrier)
        what, retrier = f"fencing producer {number} of instance {instance}", Retrier(self._retrier)
        retrier.give_up_in(_LIMIT_S)
        try:
            retrier.retry_until_success(what, lambda: producer.init_transactions(CALL_S), is_passing)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure
