"""A transactional producer that is replaced when it breaks, and the thread that makes its blocking calls."""

from bridge.config.kafka_config import Connection
from bridge.kafka import client_config as clients
from bridge.kafka.retry import CALL_S, Retrier, WorkerThread, log
from bridge.kafka.transactions.producer import (
    ProducerState,
    TimeoutRefusedError,
    TransactionalIdHeldError,
    TransactionalProducer,
)
from bridge.kafka.transactions.rejection_finder import RejectionFinder

_CLOSE_S = CALL_S + 1.0
_MAX_SELF_FENCES = 3
"""Fences in a row. Without a limit, two processes with the same id and a slow broker would fence each other forever."""
_MAX_IDS = 16
"""Transactional ids of a slot, used in turn. When the last one is held, the first one is usually free again."""


class ProducerSlot:
    """Holds one producer and its worker thread."""

    def __init__(
        self, connection: Connection, number: int, retrier: Retrier, rejection_finder: RejectionFinder | None = None
    ) -> None:
        self._number = number
        self._connection = connection
        self._generation = 0
        self._retrier = retrier
        self._rejection_finder = rejection_finder
        self._timeout_ms = clients.TRANSACTION_TIMEOUT_MS
        self._max_timeout_ms = clients.LONGEST_TRANSACTION_MS
        self._self_fences = 0
        """Fences in a row that this process may have caused itself."""
        self.producer = self._start(replaces_broken=False)
        self.worker = WorkerThread(f"publishes {number}")

    def use_longer_timeout(self) -> None:
        """Double the transaction timeout up to a limit, after a transaction that was too slow for it."""
        if self._timeout_ms < self._max_timeout_ms:
            self._timeout_ms = min(2 * self._timeout_ms, self._max_timeout_ms)
            self.producer.retire()
            text = "a transaction could not be written in time, perhaps because of a quota: the timeout is now %d s"
            log.warning(text, self._timeout_ms // 1000)

    def replace_if_broken(self) -> None:
        if not self.producer.is_broken:
            return
        self.producer.close()
        is_self_fence = self.producer.state is ProducerState.FENCED_ITSELF
        self._self_fences = 0 if self.producer.has_committed else self._self_fences + is_self_fence
        try:
            self.producer = self._start(replaces_broken=True)
        except TimeoutRefusedError as refused:
            if self._timeout_ms == clients.TRANSACTION_TIMEOUT_MS:
                raise
            self._max_timeout_ms = self._timeout_ms = max(self._timeout_ms // 2, clients.TRANSACTION_TIMEOUT_MS)
            text = "%s: brokers do not allow that: the transaction timeout stays at %d s"
            log.warning(text, refused, self._timeout_ms // 1000)
            self.producer = self._start(replaces_broken=True)

    def close(self) -> None:
        self.worker.close(_CLOSE_S)
        self.producer.close()

    def _start(self, *, replaces_broken: bool) -> TransactionalProducer:
        """Return a producer with this slot's transactional id, or with the next one that Kafka does not hold."""
        tries = 0
        while True:
            config = clients.producer(self._connection, self._number, self._generation)
            try:
                return TransactionalProducer(
                    config | {"transaction.timeout.ms": self._timeout_ms},
                    self._retrier,
                    self._rejection_finder,
                    tolerates_self_fence=self._self_fences < _MAX_SELF_FENCES,
                    replaces_broken=replaces_broken,
                )
            except TransactionalIdHeldError as held:
                tries += 1
                if tries >= _MAX_IDS:
                    self._retrier.wait("starting the producer", f"{held}, as with {_MAX_IDS} other ids", tries)
                self._generation = (self._generation + 1) % _MAX_IDS
                next_id = clients.transactional_id(self._connection, self._number, self._generation)
                log.warning("%s: a topic does not accept the end of its transaction; going on as %s", held, next_id)
