"""Periodic checks of a running bridge, in a thread of their own, so that a slow broker delays no turn."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread

from bridge.config.topic_requirements import TopicState
from bridge.errors import BridgeError, BrokerUnavailableError, ForeignJournalError
from bridge.kafka.topics import OwnTopics
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.partition.options import TurnOptions

log = logging.getLogger(__name__)

_CHECK_EVERY_S = 10.0
"""With the consumer's own check (10 s) and a rebalance, new partitions are served within 30 s."""
_JOIN_S = 1.0  # longest wait for the thread at the end


class PartitionGrowth:
    """The loop's options for the newest known numbers of partitions."""

    def __init__(
        self, topics: OwnTopics, options_of: Callable[[Mapping[str, TopicState]], TurnOptions], options: TurnOptions
    ) -> None:
        self.options = options
        self._topics = topics
        self._options_of = options_of

    def check(self) -> None:
        """Add journal partitions for new timer partitions, and divide the limits again. Raises BridgeError."""
        known = self.options
        if all(count <= (known.of(name).partitions or 0) for name, count in self._topics.counts().items()):
            return
        try:
            self.options = self._options_of(self._topics.prepare(is_running=True))
        except BridgeError as error:
            raise BridgeError(f"new partitions of a timer topic: not prepared as they should be: {error}") from error


class BackgroundChecks:
    """Run `checks` every 10 s. `error`: the error that the bridge has to end with, None until a check raises it."""

    def __init__(self, *checks: Callable[[], None]) -> None:
        self.error: ForeignJournalError | None = None
        self._checks = checks
        self._warnings = LogRateLimit(log)
        self._closed = Event()
        self._thread = Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def check(self) -> None:
        for check in self._checks:
            try:
                check()
            except ForeignJournalError as error:
                self.error = error
            except BrokerUnavailableError:
                return  # the bridge ends
            except BridgeError as error:
                self._warnings.warn(int(time.monotonic() * 1000), str(error), "%s", error)

    def _run(self) -> None:
        while not self._closed.wait(_CHECK_EVERY_S):
            self.check()
