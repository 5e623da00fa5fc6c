"""Decisions on requests: intake makes them, a draft collects them, the journal writes them in the draft's transaction.

decide --BatchIntake.decisions--> Draft.decisions --journal_fields--> JournalRecord --Decisions--> replay at a start
"""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from bridge.ports import Record
from kafka_timer.headers import Refusal
from schemas.journal import CopyInFlight
from schemas.receipts import Kind


class ReceiptDraft(NamedTuple):
    """A receipt to be written. request, origin_offset: offsets (-1: no timer). id: empty if there is none."""

    kind: Kind
    request: int
    origin_offset: int
    id: bytes
    due_ms: int | None = None
    code: str | None = None


@dataclass(slots=True)
class NewDecisions:
    """Decisions that are not written yet: the lists of schemas.journal. Numbers are origins; `dropped` are copies."""

    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    rolled: list[CopyInFlight] = field(default_factory=list)
    landed: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    receipts: list[ReceiptDraft] = field(default_factory=list)
    """Receipts of requests. Those of timers that leave are made when the draft is published."""

    def __bool__(self) -> bool:
        return self.count() > 0

    def add(self, later: "NewDecisions") -> None:
        """Add later decisions. A moved copy may be read before the draft is frozen: the journal says `landed` alone."""
        if landed := set(later.landed):
            self.rolled = [flight for flight in self.rolled if (flight.origin_offset, flight.rolls) not in landed]
        for each in fields(self):
            getattr(self, each.name).extend(getattr(later, each.name))

    def count(self) -> int:
        return sum(len(getattr(self, each.name)) for each in fields(self))

    def count_of_requests(self) -> int:
        """Return how many numbers the journal record needs for requests that were taken in."""
        return len(self.landed) + len(self.dropped) + len(self.held) + len(self.ended)

    def journal_fields(self) -> dict[str, Any]:
        """Return the fields of the same names of a JournalRecord."""
        refused = tuple(record.offset for record, _ in self.refused)
        same = ("ended", "rolled", "landed", "dropped", "held", "released")
        return {"refused": refused} | {name: tuple(getattr(self, name)) for name in same}
