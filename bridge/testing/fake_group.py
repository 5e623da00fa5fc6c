"""The consumer group of the fake Kafka."""

from collections import Counter
from collections.abc import Sequence

from kafka_timer.origin import TimerPartition


class FakeGroup:
    """Members and the owner of each partition. Every change of an owner begins a new generation.

    A partition is revoked when its owner polls, and assigned to another member after that. A member whose session has
    timed out (`expire`) notices it later; another member may own its partitions by then.
    """

    def __init__(self, name: str, partitions: Sequence[TimerPartition]) -> None:
        self.name = name
        self.generation = 0
        self.wanted: dict[TimerPartition, str | None] = dict.fromkeys(partitions)
        self.owner: dict[TimerPartition, str | None] = dict.fromkeys(partitions)
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
        for partition, owner in self.owner.items():
            if owner == member:
                self.owner[partition] = None
        self._rebalance()

    def add(self, partitions: Sequence[TimerPartition]) -> None:
        """Add partitions of a topic that has grown."""
        self.wanted |= dict.fromkeys(partitions)
        self.owner |= dict.fromkeys(partitions)
        self._rebalance()

    def move(self, partition: TimerPartition, member: str) -> None:
        """Make the assignor assign `partition` to `member`."""
        self.wanted[partition] = member

    def has_change(self, member: str, held: set[TimerPartition]) -> bool:
        """Return True if `serve` would change ownership."""
        if member not in self.members:
            return True
        for partition, wanted_by in self.wanted.items():
            if partition in held if wanted_by != member else self.owner[partition] is None:
                return True
        return False

    def serve(self, member: str, held: set[TimerPartition]) -> tuple[list[TimerPartition], list[TimerPartition]]:
        """Return the partitions that `member` gives up and those that it gets."""
        revoked = sorted(partition for partition in held if self.wanted[partition] != member)
        for partition in revoked:
            self.owner[partition] = None
        assigned = sorted(s for s in self.wanted if self.wanted[s] == member and self.owner[s] is None)
        for partition in assigned:
            self.owner[partition] = member
        if revoked or assigned:
            self.generation += 1
        return revoked, assigned

    def accepts(self, group_metadata: object) -> bool:
        """Return True if the coordinator accepts offsets with this group metadata."""
        return group_metadata in [(member, self.generation) for member in self.members]

    def _rebalance(self) -> None:
        """Rebalance with as few moves as possible."""
        self.generation += 1
        load: dict[str, list[TimerPartition]] = {member: [] for member in self.members}
        homeless: list[TimerPartition] = []
        for partition, member in self.wanted.items():
            load.get(member or "", homeless).append(partition)
        for partition in homeless:
            if load:
                load[min(load, key=lambda m: len(load[m]))].append(partition)
        while load and max(map(len, load.values())) - min(map(len, load.values())) > 1:
            most, least = (pick(load, key=lambda m: len(load[m])) for pick in (max, min))
            load[least].append(load[most].pop())
        self.wanted = dict.fromkeys(self.wanted) | {s: m for m, own in load.items() for s in own}
