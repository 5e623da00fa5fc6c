"""What operators ask of the bridge: pause and resume a target topic, skip a record that cannot be decoded."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from kafka_timer.control import DEFAULT_TOPIC, Key, Paused, Skipped, control_record
from kafka_timer.origin import TimerPartition
from kafka_timer.producer import TimerProducer
from kafka_timer.requests import Sent


class TimerOperator(TimerProducer):
    """A TimerProducer that also writes to the control topic, on which it needs Write."""

    def __init__(self, config: Mapping[str, Any], *, control_topic: str = DEFAULT_TOPIC, **options: Any) -> None:
        """`options`: those of TimerProducer."""
        super().__init__(config, **options)
        self._control_topic = control_topic

    def pause(self, topic: str) -> "list[Future[Sent]]":
        """Let timers of this timer topic for `topic` wait until `resume`."""
        return [self._control(Paused(self._timer_topic, topic))]

    def resume(self, topic: str) -> "list[Future[Sent]]":
        """Release what waits for `topic`, within its rate limit."""
        return [self._control(Paused(self._timer_topic, topic), on=False)]

    def skip(self, partition: int, offset: int) -> "Future[Sent]":
        """Let the bridge reject the record at this offset of the timer topic, which it cannot decode, and go on.

        Raises ValueError if there is no such partition.
        """
        count = self._outbox.partitions(self._timer_topic)
        if not 0 <= partition < count:
            raise ValueError(f"{self._timer_topic}/{partition}: no such partition: it has {count}, from 0 on")
        return self._control(Skipped(TimerPartition(self._timer_topic, partition), offset))

    def _control(self, wanted: Key, *, on: bool = True) -> "Future[Sent]":
        key, value = control_record(wanted, on=on)
        return self._outbox.send(self._control_topic, 0, key, value, [])
