"""Looks of a running bridge in a thread of their own, so that a broker that hangs delays no turn."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread

from bridge.config.loop_options import TurnOptions
from bridge.config.topic_requirements import TopicState
from bridge.config.topic_setup import OwnTopics
from bridge.errors import BridgeError, BrokerUnavailableError, ForeignJournalError
from bridge.observe.log_throttle import LogThrottle

log = logging.getLogger(__name__)

_LOOK_EACH_S = 10.0
"""With the consumer's own look (10 s) and a rebalance, new partitions are served within 30 s."""
_END_S = 1.0  # longest wait for the thread at the end


class Growth:
    """The options of the turns, by the newest known number of partitions of the timer topics."""

    def __init__(
        self, topics: OwnTopics, options_of: Callable[[Mapping[str, TopicState]], TurnOptions], options: TurnOptions
    ) -> None:
        self.options = options
        self._topics = topics
        self._options_of = options_of

    def look(self) -> None:
        """Add journal partitions for new timer partitions, and share the limits out again. Raises BridgeError."""
        known = self.options
        if all(count <= (known.of(name).partitions or 0) for name, count in self._topics.counts().items()):
            return
        try:
            self.options = self._options_of(self._topics.prepare(is_running=True))
        except BridgeError as wrong:
            raise BridgeError(f"new partitions of a timer topic: not prepared as they should be: {wrong}") from wrong


class Watch:
    """Call `looks` every 10 s. `wrong`: the error that the bridge has to end with, None until a look raises it."""

    def __init__(self, *looks: Callable[[], None]) -> None:
        self.wrong: ForeignJournalError | None = None
        self._looks = looks
        self._complaints = LogThrottle(log)
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
