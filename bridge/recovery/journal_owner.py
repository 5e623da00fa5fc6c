"""The group that owns a journal partition. Two groups with one journal would deliver every message twice.

    [claim A] [claim B] [A] [A] [A]      A owns it: its claim is the first. B reads that back, and refuses to start
              ...no key...               written by an older bridge, which sets no key

A record's Kafka key names its group and timer topic. A group that finds no record of its own claims the partition: it
writes a record that decides nothing, in a transaction without deliveries. Only the group of the first claim goes on and
writes decisions. The owner is therefore the group of the newest decision, or else of the first claim. All groups find
the same owner, because a committed record is visible only when all records before it are decided. If two groups start
at once on an empty journal of several partitions, each may have the first claim of one: then both refuse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from bridge.errors import ForeignJournalError
from bridge.ports import History
from schemas.journal import JournalRecord
from schemas.origin import Shard

_LOOK_BACK = (20, 1000)
"""Offsets read from the end of a journal: 1,000 only if 20 show no decision. Each commit also leaves a marker."""


def owners(shards: Sequence[Shard], history: History) -> dict[Shard, bytes]:
    """Return the key of the group that owns each shard's journal. Shards whose journal's end has no key are left out.

    Reads only records that are committed by now; does not wait for open transactions.
    """
    found: dict[Shard, bytes] = {}
    claimed: dict[Shard, bytes] = {}
    for look_back in _LOOK_BACK:
        left = [shard for shard in shards if shard not in found]
        for shard, records in history.journal_tails(left, look_back).items() if left else ():
            for key, value in reversed(records):
                if key is not None and _is_claim(value):
                    claimed[shard] = key
                elif key is not None:
                    found[shard] = key
                    break
    return claimed | found


def _is_claim(value: bytes) -> bool:
    try:
        return JournalRecord.from_bytes(value).is_claim
    except ValueError:  # written by a newer bridge
        return False


def ours(shards: Sequence[Shard], history: History, journals: Callable[[str], str]) -> set[Shard]:
    """Return the shards whose journal our group is known to own. Raises ForeignJournalError if another group owns one.

    journals: returns the journal topic of a timer topic.
    """
    found = owners(shards, history)
    for shard, key in found.items():
        if key != (own := history.journal_key(shard)):
            raise ForeignJournalError(
                f"{shard}: the journal {journals(shard.topic)} belongs to '{key.decode(errors='replace')}' (group and"
                f" timer topic), this bridge is '{own.decode()}': two groups deliver every message twice; start it with"
                f" the same --group, or, if both groups are to deliver every message, with another --journal-topic"
            )
    return set(found)


class JournalOwnerCheck:
    """Checks that the journals of `shards()` still belong to our group. journals: journal topic by timer topic."""

    def __init__(self, history: History, journals: Mapping[str, str], shards: Callable[[], Iterable[Shard]]) -> None:
        self._history = history
        self._journals = journals
        self._shards = shards
        self._ends: dict[Shard, int] = {}

    def check(self) -> None:
        """Read the ends of the journals that have grown since the last check. Raises ForeignJournalError."""
        ends = {shard: self._history.journal_end(shard) for shard in self._shards()}
        grown = [shard for shard, end in ends.items() if self._ends.get(shard) != end]
        ours(grown, self._history, self._journals.__getitem__)
        self._ends = ends
