"""Folder and servers of a part of the bench. Servers keep their data in memory, so that no disk is measured.

folder/kafka/logs/     the broker's logs, which stay          folder/kafka/data -> a temporary folder in memory

On a virtual disk some writes to a partition took 30 ms, probably if a page of its mapped indexes was new. `--disk`
shows what such a disk costs.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bridge.dev.embedded_kafka import G1, SHORT_PAUSES, EmbeddedKafka
from scripts.bench.measurements import Sizes

MEMORY = Path("/dev/shm")  # nosec B108 - what is made in it is TemporaryDirectory's: of its owner alone
ZGC, G1_PREFIX = "", "g1."
"""Garbage collectors, by the prefix of the measurements' names. ZGC has the shorter pauses, so most parts use it."""
COLLECTORS = {ZGC: SHORT_PAUSES, G1_PREFIX: (*G1, "-XX:+AlwaysPreTouch")}
"""Kafka's Java options."""
_HEAP_MB = 1024
_SMALLER = 0.4
"""Share of the messages in runs that show only ratios."""


@dataclass(frozen=True)
class BenchServers:
    """`tries`: how often ratios are measured, one after another on the same servers. `pending`: timers that stay.

    `memory`: a folder in memory for the servers' data; None: on the disk.
    """

    folder: Path
    sizes: Sizes
    steady_seconds: float
    tries: int
    pending: int
    say: Callable[[str], None]
    memory: Path | None = None

    def smaller(self) -> Sizes:
        return replace(self.sizes, messages=int(self.sizes.messages * _SMALLER))

    @contextmanager
    def kafka(self, collector: str = ZGC) -> Iterator[EmbeddedKafka]:
        """Run a broker in the part's folder."""
        home = self.folder / f"{collector}kafka"
        broker = EmbeddedKafka(home, heap_mb=_HEAP_MB, java_options=(*COLLECTORS[collector], f"-Xms{_HEAP_MB}m"))
        with self.in_memory(home / "data"), broker:
            yield broker

    @contextmanager
    def in_memory(self, folder: Path) -> Iterator[None]:
        """Keep `folder` in memory inside the `with`; it is deleted afterwards."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as ends:
            if self.memory is None:
                ends.callback(shutil.rmtree, folder, ignore_errors=True)
            else:
                folder.symlink_to(ends.enter_context(TemporaryDirectory(prefix="timer-bench-", dir=self.memory)))
                ends.callback(folder.unlink)
            yield
