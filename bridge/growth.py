"""New partitions of a running bridge's timer topics: their journals grow, and the limits are shared out again."""

from collections.abc import Callable, Mapping

from bridge.errors import BridgeError
from bridge.options import TurnOptions
from bridge.own_topics import OwnTopics
from bridge.topics import Found


class Growth:
    """`options`: what the turns are to use, by the newest count of partitions that is known."""

    def __init__(
        self, topics: OwnTopics, options_of: Callable[[Mapping[str, Found]], TurnOptions], options: TurnOptions
    ) -> None:
        self.options = options
        self._topics = topics
        self._options_of = options_of

    def look(self) -> None:
        """Make what new partitions need, and set `options` by their number. Raises BridgeError."""
        known = self.options
        if all(count <= (known.of(name).partitions or 0) for name, count in self._topics.counts().items()):
            return
        try:
            self.options = self._options_of(self._topics.prepare(is_running=True))
        except BridgeError as wrong:
            raise BridgeError(f"new partitions of a timer topic are not served as they should be: {wrong}") from wrong
