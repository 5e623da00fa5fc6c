"""What a running bridge looks at every few seconds in a thread of its own: a broker that hangs holds up no turn."""

import logging
import time
from collections.abc import Callable
from threading import Event, Thread

from bridge.complaints import Complaints
from bridge.errors import BridgeError, BrokerUnavailableError, ForeignJournalError

log = logging.getLogger(__name__)

_LOOK_EACH_S = 10.0
"""With the consumer's own look (10 s) and a rebalance, new partitions are served within 30 s."""
_END_S = 1.0


class Watch:
    """`wrong`: the error that the bridge has to end with, once a look has found one."""

    def __init__(self, *looks: Callable[[], None]) -> None:
        self.wrong: ForeignJournalError | None = None
        self._looks = looks
        self._complaints = Complaints(log)
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(_END_S)

    def look(self) -> None:
        for look in self._looks:
            try:
                look()
            except ForeignJournalError as wrong:
                self.wrong = wrong
            except BrokerUnavailableError:
                return  # the bridge ends
            except BridgeError as wrong:
                self._complaints.say(int(time.monotonic() * 1000), str(wrong), "%s", wrong)

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_EACH_S):
            self.look()
