"""One transaction from `ConfluentSink.submit` to its outcome, and its order after the one before it."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Event

from bridge.kafka.transactions.contents import TransactionContents
from bridge.kafka.transactions.producer_slot import ProducerSlot
from bridge.ports import Aborted, Committed, Outgoing


class InFlightTransaction:
    """A submitted transaction. Implements bridge.ports.SubmittedTransaction."""

    def __init__(
        self,
        outgoing: Sequence[Outgoing],
        batch: TransactionContents,
        slot: ProducerSlot,
        earlier: "InFlightTransaction | None",
    ) -> None:
        self.outgoing = outgoing
        self.batch = batch
        self.slot = slot
        self.is_loaded = False
        self._was_awaited = False
        self._began_s = time.monotonic()
        self._earlier = earlier
        self._acknowledged_or_ended = Event()
        self._outcome: Future[Committed | Aborted] = Future()

    def is_done(self) -> bool:
        return self._outcome.done()

    def wait(self) -> Committed | Aborted:
        self._was_awaited = True
        return self._outcome.result()

    # -- for the sink

    def is_settled_for_caller(self) -> bool:
        """Return True if it is committed, or the caller has read its outcome. Raises the error that it ended with."""
        return isinstance(self._outcome.result(), Committed) or self._was_awaited

    def may_send(self) -> bool:
        """Return True if there is no earlier transaction, or its records are acknowledged and it has not ended yet."""
        earlier = self._earlier
        return earlier is None or (earlier._acknowledged_or_ended.is_set() and not earlier.is_done())  # noqa: SLF001

    def await_send_turn(self) -> bool:
        """Wait until the records of the earlier transaction are acknowledged; return False if it will not commit."""
        if self._earlier is not None:
            self._earlier._acknowledged_or_ended.wait()  # noqa: SLF001
        return self.may_send() or self.earlier_committed()

    def earlier_committed(self) -> bool:
        """Wait for the earlier transaction; return True if it is committed. Raises the error that it ended with."""
        return self._earlier is None or isinstance(self._earlier._outcome.result(), Committed)  # noqa: SLF001

    def note_acknowledged(self) -> None:
        self._acknowledged_or_ended.set()

    def end(self, outcome: Committed | Aborted) -> None:
        if isinstance(outcome, Committed):
            outcome = replace(outcome, took_s=time.monotonic() - self._began_s)
        self._outcome.set_result(outcome)
        self._release_waiters()

    def fail(self, error: Exception) -> None:
        self._outcome.set_exception(error)
        self._release_waiters()

    def _release_waiters(self) -> None:
        self._earlier = None
        self._acknowledged_or_ended.set()
