"""A checkpoint on its way: first the logs become durable, then the checkpoint that speaks of them.

logs syncing -> checkpoint replacing -> done          each asked once a turn, none waited for
"""

from contextlib import suppress
from dataclasses import dataclass

from timer.files.disk import Disk, Syncing
from timer.format.checkpoint import NAME, Checkpoint


@dataclass(slots=True)
class Checkpointing:
    """`dead_units`, `dead_bodies`: segments in which nothing lives once `checkpoint` is durable."""

    disk: Disk
    checkpoint: Checkpoint
    dead_units: list[int]
    dead_bodies: list[int]
    logs: Syncing
    replacing: Syncing | None = None

    def durable(self) -> bool:
        """Takes the next step where the last one is done. Raises OSError where the disk refuses."""
        if self.replacing is None:
            if not self.logs.done():
                return False
            self.replacing = self.disk.start_replace(NAME, self.checkpoint.to_bytes())
        return self.replacing.done()

    def abandon(self) -> None:
        """Nothing of it happens later: a checkpoint written behind the next opening would speak of other logs.

        What is being written already is waited for.
        """
        if self.replacing is not None:
            with suppress(OSError):
                self.replacing.wait()

    def wait(self) -> None:
        """Until it is durable. Raises OSError where the disk refuses."""
        self.logs.wait()
        if not self.durable() and self.replacing is not None:
            self.replacing.wait()
