"""Timers on their way into a store: their frames and the columns of their units, in the order of their offsets."""

import numpy as np

from timer.entry import MAGIC_NORMAL, MAGIC_UNCHAINED, MAX_DELAY_MS, UNIT, UNIT_SIZE, Ints, Rows, topic_hash
from timer.record import Body, pack


class Batch:
    """Timers about to be stored, in the order of their offsets."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.visits_ms: list[int] = []
        self.timestamps_ms: list[int] = []
        self.origins: list[int] = []
        self.topic_hashes: list[int] = []
        self.held: list[int] = []
        """Row numbers of those whose key is <= K although they are not due yet."""

    def __len__(self) -> int:
        return len(self.frames)

    def append(self, body: Body, visit_ms: int) -> None:
        if not 0 <= visit_ms - body.timestamp_ms <= MAX_DELAY_MS:
            raise ValueError(f"visit {visit_ms} is not within {MAX_DELAY_MS} ms after timestamp {body.timestamp_ms}")
        self.frames.append(pack(body))
        self.visits_ms.append(visit_ms)
        self.timestamps_ms.append(body.timestamp_ms)
        self.origins.append(body.offset)
        self.topic_hashes.append(topic_hash(body.target))

    def hold(self, body: Body, visit_ms: int) -> None:
        self.held.append(len(self.frames))
        self.append(body, visit_ms)

    def units(self, body_positions: Ints) -> Rows:
        """Rows for the TimerLog, not chained yet."""
        units = np.zeros(len(self.frames), UNIT)
        units["size"] = UNIT_SIZE
        units["previous"] = -1
        units["magic"] = MAGIC_NORMAL
        units["magic"][self.held] |= MAGIC_UNCHAINED
        units["written_ms"] = self.timestamps_ms
        units["delay_ms"] = np.array(self.visits_ms, np.int64) - np.array(self.timestamps_ms, np.int64)
        units["body"] = body_positions
        units["body_size"] = np.fromiter(map(len, self.frames), np.int32, len(self.frames))
        units["topic_hash"] = self.topic_hashes
        units["origin"] = self.origins
        return units
