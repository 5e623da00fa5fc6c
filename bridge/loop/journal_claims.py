"""Claims of journal partitions: a partition reads and releases only after its journal is known to be our group's."""

import logging
from collections.abc import Callable, Mapping, Sequence

from bridge.errors import PartitionUnreadableError
from bridge.loop.retry_delay import RetryDelay
from bridge.ports import Clock, History
from bridge.recovery.journal_owner import ours
from bridge.release.owned_partition import OwnedPartition
from schemas.origin import Shard

log = logging.getLogger(__name__)


class JournalClaims:
    """The assigned partitions whose journal is known to be ours."""

    def __init__(self, clock: Clock, history: History, journal_of: Callable[[str], str]) -> None:
        """journal_of: returns the journal topic of a timer topic."""
        self._clock = clock
        self._history = history
        self._journal_of = journal_of
        self._known: set[Shard] = set()
        self._next_read: RetryDelay | None = None
        self._next_claims: RetryDelay | None = None

    def __contains__(self, shard: Shard) -> bool:
        return shard in self._known

    def forget(self, shard: Shard) -> None:
        self._known.discard(shard)

    def look(self, shards: Sequence[Shard]) -> set[Shard]:
        """Return those whose journal is known to be ours. Raises ForeignJournalError.

        Without an answer in time none is known, and the next read follows after 5 s: it holds up all partitions.
        """
        if not shards or (self._next_read is not None and not self._next_read.is_done()):
            return set()
        self._next_read = None
        try:
            found = ours(shards, self._history, self._journal_of)
        except PartitionUnreadableError as wrong:
            log.warning("the owner of journals is not known: %s; asking again in 5 s", wrong)
            self._next_read = RetryDelay(self._clock)
            return set()
        self._known |= found
        return found

    def confirm(self, opened: Mapping[Shard, OwnedPartition]) -> set[Shard]:
        """Return the partitions whose claim is committed and the first. Raises ForeignJournalError if it is not."""
        written = [shard for shard, owned in opened.items() if not owned.is_claimed and owned.is_quiet]
        confirmed = self.look(written)
        if len(confirmed) == len(written):
            self._next_claims = None
        elif self._next_claims is None:
            self._next_claims = RetryDelay(self._clock)
        elif self._next_claims.is_done():  # retention may have taken a claim before it was read
            self._next_claims = None
            for shard in set(written) - confirmed:
                opened[shard].claim()
        return confirmed
