"""Progress travels in a committed offset, decisions in the journal: both come back as they went."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_timer.headers import MAX_INT64
from schemas.journal import CopyInFlight, Decisions, JournalRecord
from schemas.progress import ForeignProgressError, Key, Progress
from schemas.rules import Rules

INT64 = st.integers(-1, 2**63 - 1)
OLD = Rules(max_delay_ms=1000, roll_window_ms=1000)
NEW = Rules(max_delay_ms=2000, roll_window_ms=2000, passed_on=frozenset({"timer-tenant"}))


@given(INT64, INT64, INT64, INT64)
def test_progress_comes_back_and_fits_the_broker(c: int, visit_ms: int, offset: int, low: int) -> None:
    progress = Progress(c, Key(visit_ms, offset), low)
    assert Progress.committed(c, progress.metadata()) == progress
    assert len(progress.metadata()) <= 1024


NO_PROGRESS = [
    *(None, "", "hello", "{}", "[]", "7", '{"v":2,"k":[1,1],"l":0}', '{"v":1,"k":[1]}'),
    *("[" * 4000, '{"v":1,"k":[1e999,0],"l":0}', '{"v":1,"k":[1,2],"l":9e19}'),
]


@pytest.mark.parametrize("metadata", NO_PROGRESS)
def test_metadata_that_no_bridge_wrote_is_foreign(metadata: str | None) -> None:
    with pytest.raises(ForeignProgressError):
        Progress.committed(5, metadata)


def journal(from_offset: int, next_offset: int, rules: Rules = OLD, **kinds: tuple[int, ...]) -> JournalRecord:
    return JournalRecord(from_offset=from_offset, next_offset=next_offset, rules=rules, **kinds)


def flight(origin_: int, rolls: int = 1) -> CopyInFlight:
    return CopyInFlight(origin_, rolls, 5000, "orders", "ab", "cd")


def test_a_journal_record_comes_back() -> None:
    record = JournalRecord(
        from_offset=3,
        next_offset=9,
        rules=OLD,
        refused=(4,),
        ended=(2,),
        rolled=(flight(1),),
        landed=((0, 3),),
        dropped=(7,),
        held=(5, 6),
        released=(1,),
    )
    assert JournalRecord.from_bytes(record.to_bytes()) == record


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'{"', b'{"paroled":[7],"'), (b'"from_offset":3,', b""), (b'"ended":[]', b'"ended":["x"]'), (b"{", b"")],
)
def test_other_bytes_are_no_journal_record(old: bytes, new: bytes) -> None:
    value = journal(3, 9).to_bytes()
    assert old in value
    with pytest.raises(ValueError, match="JournalRecord"):
        JournalRecord.from_bytes(value.replace(old, new, 1))
    with pytest.raises(ValueError, match="JournalRecord"):
        JournalRecord.from_bytes(b"")


def test_case_36_rules_hold_up_to_an_offset_and_as_many_ranges_are_kept_as_there_were_changes() -> None:
    commits = [journal(n, n + 1, OLD) for n in range(2, 50)]
    commits += [journal(50, 50, NEW, released=(1,)), journal(50, 60, NEW), journal(70, 80, NEW)]
    told = Decisions(commits)
    assert [told.rules_from(offset) for offset in (-1, 2, 49, 50)] == [(None, 2), (OLD, 50), (OLD, 50), (NEW, 60)]
    assert [told.rules_from(offset) for offset in (60, 70, 80)] == [(None, 70), (NEW, 80), (None, MAX_INT64)]
    changes = [journal(2, 50, OLD), journal(50, 60, NEW, released=(1,)), journal(70, 80, NEW)]
    assert len(pickle.dumps(told)) == len(pickle.dumps(Decisions(changes)))


def test_decisions_add_up() -> None:
    told = Decisions([journal(0, 4, refused=(1,), held=(2,)), journal(4, 9, held=(5,), released=(2,), ended=(3,))], [0])
    assert (told.refused, told.held, told.ended) == ({1}, {0, 5}, {3})


def test_a_timer_that_is_released_and_held_again_is_held() -> None:
    assert Decisions([journal(0, 4, held=(2,)), journal(4, 4, released=(2,)), journal(4, 5, held=(2,))]).held == {2}


def test_a_waiting_timer_and_its_copy_out_of_order_are_distinguished() -> None:
    told = Decisions([journal(4, 4, released=(2,)), journal(4, 5, held=(2,))], held=[1, 2])
    assert (told.held, told.waiting) == ({1, 2}, {1})


def test_a_key_range_from_before_a_timer_was_out_of_order_does_not_change_it() -> None:
    records = [journal(4, 4, released=(2,)), journal(4, 5, held=(2,)), journal(5, 9)]
    assert Decisions(records, held=[1, 2], known=5).waiting == {1, 2}
    assert Decisions([*records, journal(9, 9, released=(2,))], held=[1, 2], known=5).waiting == {1}


def test_copies_in_flight_are_those_rolled_and_not_received() -> None:
    first = JournalRecord(from_offset=0, next_offset=4, rules=OLD, rolled=(flight(1), flight(2)), landed=((0, 1),))
    second = JournalRecord(from_offset=4, next_offset=6, rules=OLD, rolled=(flight(1, 2),), landed=((1, 1),))
    told = Decisions([first, second], flights=[flight(0)])
    assert set(told.flights) == {(2, 1), (1, 2)}
    assert told.rolled == {(0, 1), (1, 1), (2, 1), (1, 2)}


def test_a_copy_received_before_the_known_offset_is_not_gone() -> None:
    """The store has its unit. A copy that was received later is read again."""
    rolled = JournalRecord(from_offset=0, next_offset=5, rules=OLD, rolled=(flight(2), flight(3)))
    landed = JournalRecord(from_offset=5, next_offset=9, rules=OLD, landed=((2, 1),))
    assert Decisions([rolled, landed], known=9).gone == {3}
    assert Decisions([rolled, landed], known=8).gone == {2, 3}


def test_progress_set_back_by_the_operator_voids_later_decisions() -> None:
    told = Decisions([journal(0, 10, refused=(1, 6), held=(7,)), journal(5, 8, NEW, refused=(7,))])
    assert (told.refused, told.held) == ({1, 7}, set())
    assert [told.rules_from(offset)[0] for offset in (4, 5, 8)] == [OLD, NEW, None]


def test_progress_put_back_keeps_all_that_was_decided_of_requests_before() -> None:
    """A copy of a request that will be read again is not awaited: the request is a timer again."""
    kinds = ("refused", "ended", "dropped", "held")
    before = JournalRecord(
        from_offset=0,
        next_offset=10,
        rules=OLD,
        rolled=tuple(map(flight, (4, 5, 6))),
        **dict.fromkeys(kinds, (4, 5, 6)),
    )
    released = journal(10, 10, released=(4, 5, 6))
    told = Decisions([before, journal(5, 8, NEW)])
    assert [getattr(told, kind) for kind in kinds] == [{4}] * 4
    assert (set(told.flights), told.rolled, told.gone) == ({(4, 1)}, {(4, 1)}, {4})
    assert Decisions([before, released, journal(5, 8, NEW)]).released == {4}
    assert Decisions([journal(0, 10), journal(5, 8)], held=[4, 5, 6]).waiting == {4}
    told = Decisions([journal(0, 5), journal(5, 10, NEW), journal(5, 8)])
    assert told.rules_from(0) == (OLD, 8)
