"""A broker for measurements: its pauses and its disk are not measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.dev.embedded_kafka import SHORT_PAUSES, EmbeddedKafka

MEMORY = "/dev/shm"  # nosec B108 - what is made in it is TemporaryDirectory's: of its owner alone
_HEAP_MB = 1024


@contextmanager
def quiet_kafka(home: Path) -> Iterator[EmbeddedKafka]:
    """Run a broker that collects without pauses and keeps its data in memory. home: for its logs."""
    broker = EmbeddedKafka(home, heap_mb=_HEAP_MB, java_options=(*SHORT_PAUSES, f"-Xms{_HEAP_MB}m"))
    with in_memory(home / "data"), broker:
        yield broker


@contextmanager
def in_memory(folder: Path) -> Iterator[None]:
    """Keep `folder` in memory inside the `with`; it is deleted afterwards."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="timer-bridge-", dir=MEMORY) as memory:
        folder.symlink_to(memory)
        try:
            yield
        finally:
            folder.unlink()
