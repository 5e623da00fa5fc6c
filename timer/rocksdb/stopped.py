"""Read and verify the database of a stopped store with the engine `rocksdb`, at its checkpoint."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.format.checkpoint import DATABASE, Checkpoint
from timer.rocksdb.database import BINDINGS_FILE, Database
from timer.rocksdb.timers import RocksTimers


class RocksRows:
    """As timer.wheel.stopped.WheelRows."""

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
        self.close, self.live, self.bodies = self._opened.close, self._timers.all_rows, self._timers.bodies

    def files(self) -> dict[str, int]:
        return {f"{self._name}/{path.name}": path.stat().st_size for path in sorted(self._folder.iterdir())}

    def damaged(self, unit: int, what: str) -> CorruptStoreError:
        return CorruptStoreError(self._name, f"unit {unit}: {what}")

    def check(self, by_tick: Counter[int], with_id: int, *, is_closed: bool) -> None:  # noqa: ARG002
        """Compare the four orders. RocksDB checks the checksum of each block that it reads."""
        checkpoint = self._checkpoint
        self._timers.restore(checkpoint.pending)
        in_order = Counter(visit_ms // checkpoint.tick_ms for visit_ms, _ in self._database.visits_ms(0))
        counts = {
            "timers": (self._database.count("log"), checkpoint.pending),
            "origins": (self._database.count("origins"), checkpoint.pending),
            "ids": (self._database.count("ids"), with_id),
            "in order": (in_order.total(), by_tick.total()),
        }
        for name, (count, expected) in counts.items():
            if count != expected:
                raise CorruptStoreError(self._name, f"{count} {name}, expected {expected}")
        if in_order != by_tick:
            raise CorruptStoreError(self._name, "the timers in order have other wake-up times than those in the log")
