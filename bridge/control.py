"""What operators ask of this bridge on the control topic (schemas.control): kept in memory, applied by the turn."""

import logging
from collections.abc import Collection, Iterable

from bridge.errors import BrokerUnavailableError
from bridge.ports import Control, Record
from schemas.control import Key, Paused, Skipped, read
from schemas.origin import Shard

log = logging.getLogger(__name__)

MOST_KEYS = 10_000
"""Operators write a few; the bound keeps memory small if somebody writes many."""


class Desired:
    """The newest state of each key about one of `timer_topics`."""

    def __init__(self, port: Control, timer_topics: Collection[str]) -> None:
        self._port = port
        self._timer_topics = timer_topics
        self._known: dict[Key, bool] = {}
        self._is_new = False
        self.is_current = True
        """False if the last `catch_up` did not come to the end."""

    def poll(self) -> bool:
        """Take in what is new, without waiting. Return True if there was any since the last poll."""
        self._take(self._port.poll())
        is_new, self._is_new = self._is_new, False
        return is_new

    def catch_up(self) -> None:
        """Take in all that is on the control topic by now. Waits for it, for a few seconds."""
        try:
            self._take(self._port.catch_up())
            self.is_current = True
        except BrokerUnavailableError as silent:
            self.is_current = False
            log.warning("control topic not read, so new partitions wait: %s; it is tried again every 5 s", silent)

    def pauses(self, timer_topic: str) -> dict[str, bool]:
        """Return the targets of `timer_topic` about which anything is said, and whether each is paused."""
        known = self._known.items()
        return {key.target: on for key, on in known if isinstance(key, Paused) and key.timer_topic == timer_topic}

    def is_skipped(self, shard: Shard, offset: int) -> bool:
        """Return True if the record at `offset` is to be rejected if it cannot be decoded."""
        return self._known.get(Skipped(shard, offset), False)

    def _take(self, records: Iterable[Record]) -> None:
        for record in records:
            self._is_new = True
            try:
                self._note(*read(record.key, record.value))
            except ValueError as wrong:
                log.warning("control topic, offset %d: ignored: %s", record.offset, wrong)

    def _note(self, key: Key, on: bool | None) -> None:  # noqa: FBT001
        """Raise ValueError if it is not kept."""
        topic = key.timer_topic if isinstance(key, Paused) else key.shard.topic
        if on is None:
            self._known.pop(key, None)
        elif topic not in self._timer_topics:
            raise ValueError(f"{topic} is no timer topic of this bridge")
        elif key not in self._known and len(self._known) >= MOST_KEYS:
            raise ValueError(f"{MOST_KEYS} keys are known already: delete some (a null value)")
        else:
            self._known[key] = on
