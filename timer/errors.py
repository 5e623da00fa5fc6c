"""What can be wrong with a store. Each says where, and who acts."""


class CorruptStoreError(Exception):
    """Bytes on disk that cannot be what was written. The store is only a cache: it is rebuilt from Kafka.

    `at`: the byte of the file `where` at which the record begins, if that is known.
    """

    def __init__(self, where: str, what: str, at: int | None = None) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what
        self.at = at


class UnreadableError(CorruptStoreError):
    """The disk does not give bytes back that it holds: a bad sector, or a fault that passes."""


class WheelFullError(Exception):
    """A slot still holds timers one lap older: delivery has stood still for a lap. Nothing was stored; wait."""
