"""Read and verify the database of a stopped store with the engine `rocksdb`, at its checkpoint."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from timer.disk import Disk, LogFile
from timer.errors import CorruptStoreError
from timer.format.body import Body
from timer.format.checkpoint import DATABASE, Checkpoint
from timer.format.unit import Rows, hash_of, topic_hash
from timer.rocksdb.database import BINDINGS_FILE, ROW_SIZE, Database
from timer.rocksdb.timers import RocksTimers

_BODIES = 64
"""Bodies in memory at once."""


class RocksRows:
    """See timer.stopped_store.StoredRows."""

    def __init__(self, disk: Disk, checkpoint: Checkpoint) -> None:
        self._name = f"{DATABASE}/{checkpoint.database}"
        self._checkpoint = checkpoint
        try:
            self._folder = disk.folder(self._name)
        except FileNotFoundError as missing:
            raise CorruptStoreError(self._name, "the folder is missing") from missing
        with ExitStack() as opened:  # on an error, nothing stays
            # The binding writes a file of its own wherever it opens a database, so it gets a folder of links.
            links = Path(opened.enter_context(TemporaryDirectory(prefix="timer-bridge-")))
            for path in self._folder.iterdir():
                if path.name != BINDINGS_FILE:
                    (links / path.name).symlink_to(path.resolve())
            self._database = Database(links, is_read_only=True)
            opened.callback(self._database.close)
            self._opened = opened.pop_all()
        self._timers = RocksTimers(self._database, checkpoint.tick_ms)

    def close(self) -> None:
        self._opened.close()

    def files(self) -> list[LogFile]:
        return [LogFile(f"{self._name}/{path.name}", path.stat().st_size) for path in sorted(self._folder.iterdir())]

    def live(self) -> Iterator[Rows]:
        return self._timers.blocks()

    def bodies(self, rows: Rows) -> list[Body]:
        return self._timers.bodies(rows)

    def verify(self, *, is_closed: bool) -> tuple[int, int]:  # noqa: ARG002
        """Check every value, and the four orders against each other. Return the number of timers and of ticks.

        RocksDB checks the checksum of each block that it reads. Raises CorruptStoreError.
        """
        timers = ids = 0
        for rows in self.live():
            timers += len(rows)
            ids += int((rows["id_hash"] != 0).sum())
            for first in range(0, len(rows), _BODIES):
                self._verify_bodies(rows[first : first + _BODIES])
        self._timers.restore(self._checkpoint.pending)
        in_order, ticks = self._verify_order()
        counts = {"timers": timers, "origins": self._database.count("origins"), "in order": in_order}
        for name, count in counts.items():
            expected = self._checkpoint.pending - (len(self._checkpoint.held) if name == "in order" else 0)
            if count != expected:
                raise CorruptStoreError(self._name, f"{count} {name}, the checkpoint counts {expected}")
        if (count := self._database.count("ids")) != ids:
            raise CorruptStoreError(self._name, f"{count} ids, {ids} timers have one")
        return timers, ticks

    def _verify_bodies(self, rows: Rows) -> None:
        for body, row in zip(self.bodies(rows), rows, strict=True):
            told = (body.origin_offset, body.due_ms, topic_hash(body.target), hash_of(body.id) if body.id else 0)
            if told != (row["origin"], row["due_ms"], row["topic_hash"], row["id_hash"]):
                raise CorruptStoreError(self._name, f"unit {row['unit']}: its row and its body differ")

    def _verify_order(self) -> tuple[int, int]:
        """Compare the rows in the order of release with those of the log. Return their number and that of ticks."""
        count, ticks = 0, set[int]()
        for rows in self._database.in_order(0, (1 << 63) - 1, _BODIES):
            if not len(rows):
                continue
            count += len(rows)
            ticks.update((rows["visit_ms"] // self._checkpoint.tick_ms).tolist())
            data = rows.tobytes()
            for at, value in enumerate(self._database.values(rows["unit"])):
                if value[:ROW_SIZE] != data[at * ROW_SIZE : (at + 1) * ROW_SIZE]:
                    raise CorruptStoreError(self._name, f"unit {rows['unit'][at]}: two different rows")
        return count, len(ticks)
