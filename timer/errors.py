"""Errors of a store."""


class CorruptStoreError(Exception):
    """Bytes on disk that cannot be what was written. The store is a cache: it is rebuilt from Kafka.

    at: the byte of the file `where` at which the record begins, if known.
    """

    def __init__(self, where: str, what: str, at: int | None = None) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what
        self.at = at


class UnreadableError(CorruptStoreError):
    """The disk does not return bytes that it holds: a bad sector, or a temporary fault."""


class WheelFullError(Exception):
    """A slot holds pending timers of another lap. Nothing was stored: retry after they have been delivered."""
