"""One transaction from `ConfluentSink.submit` to its outcome."""

import time
from concurrent.futures import Future
from dataclasses import replace

from bridge.kafka.transactions.contents import TransactionContents
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.ports import Aborted, Committed, Transaction


class InFlightTransaction:
    """A submitted transaction. Implements bridge.ports.SubmittedTransaction."""

    def __init__(self, transaction: Transaction, batch: TransactionContents, slot: ProducerSlot) -> None:
        self.outgoing = transaction.outgoing
        self.tries = transaction.tries
        self.batch = batch
        self.slot = slot
        self.is_loaded = False
        """True if its records were handed to the producer at `submit`."""
        self._began_s = time.monotonic()
        self._outcome: Future[Committed | Aborted] = Future()

    def is_done(self) -> bool:
        return self._outcome.done()

    def wait(self) -> Committed | Aborted:
        return self._outcome.result()

    # -- for the sink

    def end(self, outcome: Committed | Aborted) -> None:
        if isinstance(outcome, Committed):
            outcome = replace(outcome, took_s=time.monotonic() - self._began_s)
        self._outcome.set_result(outcome)

    def fail(self, error: Exception) -> None:
        self._outcome.set_exception(error)
