"""The consumer group of the fake Kafka."""

from collections import Counter
from collections.abc import Sequence

from kafka_timer.origin import Shard


class FakeGroup:
    """Members and the owner of each partition. Every change of an owner begins a new generation.

    A partition is revoked when its owner polls, and assigned to another member after that. A member whose session has
    timed out (`expire`) notices it later; another member may own its partitions by then.
    """

    def __init__(self, name: str, shards: Sequence[Shard]) -> None:
        self.name = name
        self.generation = 0
        self.wanted: dict[Shard, str | None] = dict.fromkeys(shards)
        self.owner: dict[Shard, str | None] = dict.fromkeys(shards)
        self.members: list[str] = []
        self._joined: Counter[str] = Counter()

    def join(self, name: str) -> str:
        """Return the new member's id: `name`, or if it was used before, `name#1`, `name#2` ..."""
        member = f"{name}#{self._joined[name]}" if self._joined[name] else name
        self._joined[name] += 1
        self.members.append(member)
        self._rebalance()
        return member

    def expire(self, member: str) -> None:
        """Remove a member at once, without a notice to it. A clean leave calls this too."""
        if member not in self.members:
            return
        self.members.remove(member)
        for shard, owner in self.owner.items():
            if owner == member:
                self.owner[shard] = None
        self._rebalance()

    def add(self, shards: Sequence[Shard]) -> None:
        """Add partitions of a topic that has grown."""
        self.wanted |= dict.fromkeys(shards)
        self.owner |= dict.fromkeys(shards)
        self._rebalance()

    def move(self, shard: Shard, member: str) -> None:
        """Make the assignor assign `shard` to `member`."""
        self.wanted[shard] = member

    def has_change(self, member: str, held: set[Shard]) -> bool:
        """Return True if `serve` would change ownership."""
        if member not in self.members:
            return True
        for shard, wanted_by in self.wanted.items():
            if shard in held if wanted_by != member else self.owner[shard] is None:
                return True
        return False

    def serve(self, member: str, held: set[Shard]) -> tuple[list[Shard], list[Shard]]:
        """Return the partitions that `member` gives up and those that it gets."""
        revoked = sorted(shard for shard in held if self.wanted[shard] != member)
        for shard in revoked:
            self.owner[shard] = None
        assigned = sorted(s for s in self.wanted if self.wanted[s] == member and self.owner[s] is None)
        for shard in assigned:
            self.owner[shard] = member
        if revoked or assigned:
            self.generation += 1
        return revoked, assigned

    def accepts(self, group_metadata: object) -> bool:
        """Return True if the coordinator accepts offsets with this group metadata."""
        return group_metadata in [(member, self.generation) for member in self.members]

    def _rebalance(self) -> None:
        """Rebalance with as few moves as possible."""
        self.generation += 1
        load: dict[str, list[Shard]] = {member: [] for member in self.members}
        homeless: list[Shard] = []
        for shard, member in self.wanted.items():
            load.get(member or "", homeless).append(shard)
        for shard in homeless:
            if load:
                load[min(load, key=lambda m: len(load[m]))].append(shard)
        while load and max(map(len, load.values())) - min(map(len, load.values())) > 1:
            most, least = (pick(load, key=lambda m: len(load[m])) for pick in (max, min))
            load[least].append(load[most].pop())
        self.wanted = dict.fromkeys(self.wanted) | {s: m for m, own in load.items() for s in own}
