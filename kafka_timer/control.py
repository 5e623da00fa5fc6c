"""Format of the control topic, the desired state of timer topics: paused real topics and skipped records.

    key  pause/timer.requests/orders        pause timers of `timer.requests` for the real topic `orders`
    key  skip/timer.requests/3/4711         reject the record at this partition and offset if it cannot be decoded
    value {"v":1,"on":true}                 "on":false takes it back

The newest record of a key counts. A null value deletes the key: the state stays as it is. The topic is compacted and
has one partition. Topic names contain no slash.
"""

import re
from typing import NamedTuple, TypeAlias

from kafka_timer.headers import legal_topic, shown
from kafka_timer.origin import TimerPartition

DEFAULT_TOPIC = "timer.control"
_PAUSE, _SKIP = re.compile(rb"pause/([^/]+)/([^/]+)"), re.compile(rb"skip/([^/]+)/(\d{1,9})/(\d{1,18})")


class Paused(NamedTuple):
    """Timers of `timer_topic` wait when they are due for `target`."""

    timer_topic: str
    target: str


class Skipped(NamedTuple):
    """The record at `offset` of this partition is rejected if it cannot be decoded."""

    partition: TimerPartition
    offset: int


Key: TypeAlias = Paused | Skipped


def control_record(key: Key, *, on: bool) -> tuple[bytes, bytes]:
    """Return key and value of the record that asks for `key`, or takes it back.

    Raises ValueError if a name in `key` is not a legal topic.
    """
    if isinstance(key, Paused):
        raw = f"pause/{key.timer_topic}/{key.target}".encode()
    else:
        raw = f"skip/{key.partition}/{key.offset}".encode()
    read_key(raw)
    return raw, b'{"v":1,"on":%s}' % (b"true" if on else b"false")


def read_key(raw: bytes) -> Key:
    """Parse a key. Raises ValueError if `raw` is not one."""
    if found := _PAUSE.fullmatch(raw):
        return Paused(_topic(found[1]), _topic(found[2]))
    if found := _SKIP.fullmatch(raw):
        return Skipped(TimerPartition(_topic(found[1]), int(found[2])), int(found[3]))
    raise ValueError(f"key {raw[:300]!r}: unknown; write pause/TIMER-TOPIC/TARGET or skip/TIMER-TOPIC/PARTITION/OFFSET")


def _topic(raw: bytes) -> str:
    name = legal_topic(raw)
    if name is None:
        raise ValueError(f"bad-target: {shown(raw)} is an illegal or internal topic; name another one")
    return name
