"""The desired state that operators write to the control topic (kafka_timer.control), in memory; turns apply it."""

import logging
from collections.abc import Collection, Iterable

from bridge.errors import BrokerUnavailableError
from bridge.ports import Control, Record
from kafka_timer.control import Key, Paused, Skipped
from kafka_timer.origin import TimerPartition
from schemas.control import read

log = logging.getLogger(__name__)

MOST_KEYS = 10_000
"""Operators write a few keys; the bound limits memory if somebody writes many."""


class ControlState:
    """The newest state of each key about one of `timer_topics`."""

    def __init__(self, port: Control, timer_topics: Collection[str]) -> None:
        self._port = port
        self._timer_topics = timer_topics
        self._known: dict[Key, bool] = {}
        self._is_new = False
        self.is_current = True
        """True unless the last `catch_up` failed before the end of the topic."""

    def poll(self) -> bool:
        """Apply new records, without waiting. Return True if any were applied since the last poll."""
        self._take(self._port.poll())
        is_new, self._is_new = self._is_new, False
        return is_new

    def catch_up(self) -> None:
        """Read up to the current end of the control topic. Blocks for a few seconds at most."""
        try:
            self._take(self._port.catch_up())
            self.is_current = True
        except BrokerUnavailableError as silent:
            self.is_current = False
            log.warning("control topic: not read: %s; new partitions wait, it is read again every 5 s", silent)

    def pauses(self, timer_topic: str) -> dict[str, bool]:
        """Return each target of `timer_topic` that has a key on the control topic, with True if it is paused."""
        known = self._known.items()
        return {key.target: on for key, on in known if isinstance(key, Paused) and key.timer_topic == timer_topic}

    def is_skipped(self, partition: TimerPartition, offset: int) -> bool:
        """Return True if an operator asked to reject the record at `offset` if it cannot be decoded."""
        return self._known.get(Skipped(partition, offset), False)

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            self._is_new = True
            try:
                self._note(*read(record.key, record.value))
            except ValueError as wrong:
                log.warning("control topic, offset %d: ignored: %s", record.offset, wrong)

    def _note(self, key: Key, on: bool | None) -> None:  # noqa: FBT001
        """Keep `key`, or delete it if `on` is None. Raises ValueError if `key` is not kept."""
        topic = key.timer_topic if isinstance(key, Paused) else key.partition.topic
        if on is None:
            self._known.pop(key, None)
        elif topic not in self._timer_topics:
            raise ValueError(f"{topic}: not a timer topic of this bridge")
        elif key not in self._known and len(self._known) >= MOST_KEYS:
            raise ValueError(f"{MOST_KEYS} keys are the limit; delete some (write a null value)")
        else:
            self._known[key] = on
