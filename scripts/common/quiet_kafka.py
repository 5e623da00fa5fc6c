"""A broker for measurements: its pauses and its disk are not measured."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.dev.embedded_kafka import SHORT_PAUSES, EmbeddedKafka

MEMORY = Path("/dev/shm")  # nosec B108 - what is made in it is TemporaryDirectory's: of its owner alone
_HEAP_MB = 1024


@contextmanager
def quiet_kafka(home: Path) -> Iterator[EmbeddedKafka]:
    """Run a broker that collects without pauses and keeps its data in memory. home: for its logs."""
    broker = EmbeddedKafka(home, heap_mb=_HEAP_MB, java_options=(*SHORT_PAUSES, f"-Xms{_HEAP_MB}m"))
    with in_memory(home / "data"), broker:
        yield broker


@contextmanager
def in_memory(folder: Path) -> Iterator[None]:
    """Keep `folder` in memory inside the `with`, or on the disk if there is no MEMORY; it is deleted afterwards."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ends:
        if MEMORY.is_dir():
            folder.symlink_to(ends.enter_context(TemporaryDirectory(prefix="timer-bridge-", dir=MEMORY)))
            ends.callback(folder.unlink)
        else:
            ends.callback(shutil.rmtree, folder, ignore_errors=True)
        yield
