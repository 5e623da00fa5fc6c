"""Read old requests again: which of them are still pending, by what the journal says about them."""

from collections.abc import Callable, Iterable

from bridge.intake.request import ask_of, body_of
from bridge.ports import Record
from schemas.headers import Claim, Refusal, Rules, Schedule
from schemas.journal import Decisions
from timer.format.batch import Batch
from timer.schedule.release_policy import visit_ms


def replay(
    records: Iterable[Record],
    is_unreleased: Callable[[str, tuple[int, int]], bool],
    rules_from: Callable[[int], tuple[Rules, int]],
    decisions: Decisions,
    offset_of: Callable[[bytes], int],
) -> Batch:
    """Return the timers of `records` that are still pending by the journal's decisions.

    is_unreleased(target, (visit_ms, origin offset)): True if a timer with this key has not left.
    rules_from(offset): the rules by which it was first read, and the offset up to which they hold.
    Raises ValueError if a request that the journal calls a timer does not parse as one.
    """
    batch = Batch()
    refused, dropped, ended, released = decisions.refused, decisions.dropped, decisions.ended, decisions.released
    rolled = decisions.rolled
    rules: Rules | None = None
    until = 0
    for record in records:
        offset = record.offset
        if offset in refused or offset in dropped:
            continue
        if rules is None or offset >= until:
            rules, until = rules_from(offset)
        asked = ask_of(record, rules)
        if type(asked) is Schedule:
            schedule, origin_offset, rolls = asked, offset, 0
        elif isinstance(asked, Claim):
            schedule, origin_offset, rolls = asked.schedule, offset_of(asked.origin), asked.rolls
        elif isinstance(asked, Refusal):
            raise ValueError(f"offset {offset} was taken in before, but now reads as {asked.code}: {asked.detail}")
        else:
            continue
        if origin_offset in ended or origin_offset in released or (rolled and (origin_offset, rolls + 1) in rolled):
            continue
        visit = visit_ms(schedule.due_ms, record.timestamp_ms, rules.roll_window_ms)
        if origin_offset in decisions.held:
            batch.hold(body_of(record, schedule, origin_offset, rolls), visit)
        elif is_unreleased(schedule.target, (visit, origin_offset)):
            batch.add(body_of(record, schedule, origin_offset, rolls), visit)
    return batch
