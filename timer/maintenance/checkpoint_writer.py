"""Write a checkpoint: first the logs become durable, then the checkpoint that names them.

logs syncing -> checkpoint replacing -> done          polled once a turn, never waited for in a turn
"""

from contextlib import suppress
from dataclasses import dataclass

from timer.files.disk import Disk, Syncing
from timer.format.checkpoint import NAME, Checkpoint


@dataclass(slots=True)
class CheckpointWriter:
    """dead_units, dead_bodies: segments without pending rows, to be deleted once `checkpoint` is durable."""

    disk: Disk
    checkpoint: Checkpoint
    dead_units: list[int]
    dead_bodies: list[int]
    logs: Syncing
    replacing: Syncing | None = None

    def poll(self) -> bool:
        """Start the next step if the last one is done; return True once durable. Raises OSError if the disk refuses."""
        if self.replacing is None:
            if not self.logs.done():
                return False
            self.replacing = self.disk.start_replace(NAME, self.checkpoint.to_bytes())
        return self.replacing.done()

    def abandon(self) -> None:
        """Make sure that nothing is written later: the checkpoint would name logs of another opening.

        Waits for a replacement that has started.
        """
        if self.replacing is not None:
            with suppress(OSError):
                self.replacing.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is durable. Raises OSError if the disk refuses."""
        self.logs.wait()
        if not self.poll() and self.replacing is not None:
            self.replacing.wait()
