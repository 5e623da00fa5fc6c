"""Case 33 at scale: each record has exactly one outcome, whatever its headers are, and the bridge goes on.

    refused     on timer.rejected, whole, once
    a timer     delivered once | parked on timer.rejected once | ended by a later one with its id | still pending
    a cancel    answered by one or more receipts; neither delivered nor rejected
    recurring   delivered or parked again and again, each occurrence once (here only that; see test_recurring.py)

`FUZZ=1000000 SEED=7 pytest bridge/partition/tests/test_malformed_requests.py` sends that many records, drawn by that
seed. The defaults are 20,000 and 33.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from bridge.partition.options import StoreOptions, TurnOptions
from bridge.partition.request import MAX_HEADERS
from bridge.testing.fake_kafka import Entry
from bridge.testing.timer_world import TIMERS, TimerWorld
from bridge.tests.simulation.malformed_requests import Header, Raw, RawRequests
from schemas.profiles import PROFILES
from schemas.rules import Rules

COUNT = int(os.environ.get("FUZZ", "20000"))
SEED = int(os.environ.get("SEED", "33"))
PIECE = 10_000
"""Records in one world."""
START_MS = 1_700_000_000_000
REACH_MS = 15_000
REJECTED_BYTES = 100_000
LARGE = 150_000
"""More than the rejected topic takes: a compressed record may be larger than any topic takes uncompressed."""
ADDED = 4
"""Number of headers that a delivery adds."""
AT_TARGETS = {"unknown-topic", "unknown-partition", "not-authorized", "too-large", "missed"}
AT_INTAKE = {
    *("too-many-headers", "bad-header", "missing-time", "ambiguous-time", "too-far", "missing-topic", "missing-id"),
    *("unknown-action", "bad-target", "too-large", "not-ours", "no-occurrence"),
}


def world() -> TimerWorld:
    own = frozenset({TIMERS, "timer.journal", "timer.rejected", "timer.receipts"})
    rules = Rules(
        max_delay_ms=20_000,
        roll_window_ms=2000,
        levels_ms=(1000, 5000),
        profiles=("native", *PROFILES),
        own_topics=own,
        passed_on=frozenset(),
    )
    store = StoreOptions(tick_ms=10, slots=1024, segment_bytes=200_000, checkpoint_interval_ms=1000)
    options = TurnOptions(rules=rules, store=store, receipts="all", commit_interval_ms=100)
    made = TimerWorld("orders", "bills", options=options)
    made.kafka.create("small", max_bytes=120)
    made.kafka.create("secret", denied=True)
    made.kafka.create("timer.rejected", max_bytes=REJECTED_BYTES)
    made.kafka.timeline.now_ms = START_MS
    return made


class Fates:
    """The outcomes of all requests, from Kafka's topics alone."""

    def __init__(self, place: TimerWorld) -> None:
        delivered = [entry for topic in ("orders", "bills", "small") for entry in place.read(topic)]
        rejected = place.read("timer.rejected")
        occurrences = [(origin_of(each), each.headers[-1][1]) for each in delivered if is_occurrence(each, -1)]
        occurrences += [(origin_of(each), each.headers[-4][1]) for each in rejected if is_occurrence(each, -4)]
        assert len(occurrences) == len({*occurrences}), "an occurrence twice"
        self.recurring = {origin for origin, _ in occurrences}
        self.delivered = by_origin([each for each in delivered if not is_occurrence(each, -1)])
        self.rejected = by_origin([each for each in rejected if not is_occurrence(each, -4)])
        self.codes = {at: dict(entry.headers)["timer-error"] or b"" for at, entry in self.rejected.items()}
        said = [json.loads(entry.value or b"") for entry in place.read("timer.receipts")]
        self.told = Counter((each["kind"], number(each["request"])) for each in said)
        self.accepted = {at for kind, at in self.told if kind == "accepted"}
        self.ended = [number(each["origin"]) for each in said if each["kind"] in ("cancelled", "replaced")]
        self.answered = {at for kind, at in self.told if kind in ("cancelled", "not-found", "too-late")}


def is_occurrence(entry: Entry, place: int) -> bool:
    """Return True for one of a recurring timer: its number is the header at `place`, before the reason of a rejection.

    A sender's own header of that name is refused with a code of intake.
    """
    reason = dict(entry.headers[place + 1 :]) if place < -1 else {}
    code = (reason.get("timer-error") or b"").decode()
    return len(entry.headers) > ADDED and entry.headers[place][0] == "timer-occurrence" and code in {"", *AT_TARGETS}


def origin_of(entry: Entry) -> int:
    return number((dict(entry.headers[-ADDED - 1 :])["timer-origin"] or b"").decode())


def by_origin(entries: list[Entry]) -> dict[int, Entry]:
    """Return the entries by the offset of their request. Fail if one comes twice."""
    origins = [origin_of(entry) for entry in entries]
    twice = [at for at, times in Counter(origins).items() if times > 1]
    assert not twice, f"twice: {twice}"
    return dict(zip(origins, entries, strict=True))


def number(origin: str) -> int:
    topic, partition, offset = origin.split("/")
    assert (topic, partition) == (TIMERS, "0")
    return int(offset)


def check(sent: dict[int, Raw], fates: Fates, pending: int) -> Counter[str]:
    """Return the number of requests of each outcome. Fail if one has none, two, or a wrong one."""
    found: Counter[str] = Counter()
    ended = set(fates.ended)
    assert len(ended) == len(fates.ended), "ended twice"
    for at, raw in sent.items():
        is_timer = at in fates.accepted
        if at in fates.recurring:
            assert is_timer, f"{at}: {raw}: refused, though it recurs"
            assert at not in fates.delivered.keys() | fates.rejected.keys(), f"{at}: {raw}: also once"
            found["recurring"] += 1
            continue
        had = [
            *(["delivered"] if at in fates.delivered else []),
            *([("parked " if is_timer else "refused ") + fates.codes[at].decode()] if at in fates.rejected else []),
            *(["ended"] if at in ended else []),
            *(["answered"] if at in fates.answered and not is_timer else []),
        ]
        assert len(had) <= 1, f"{at}: {raw}: {had}"
        assert had or is_timer, f"{at}: {raw}: vanished"
        fate = had[0] if had else "pending"
        assert (fate in ("delivered", "ended", "pending") or fate.startswith("parked")) == is_timer, (
            f"{at}: {raw}: {fate}"
        )
        found[fate] += 1
        if fate == "delivered":
            as_sent(raw, fates.delivered[at])
        elif at in fates.rejected:
            code = fates.codes[at].decode()
            assert code in (AT_TARGETS if is_timer else AT_INTAKE), code
            whole(raw, fates.rejected[at])
        assert fates.told["delivered", at] == (fate == "delivered")
        assert fates.told["rejected", at] == (at in fates.rejected)
    assert found["pending"] <= pending <= found["pending"] + found["recurring"]
    assert fates.delivered.keys() | fates.rejected.keys() | ended | fates.recurring <= sent.keys()
    return found


def as_sent(raw: Raw, entry: Entry) -> None:
    headers, told = list(entry.headers[:-ADDED]), dict(entry.headers[-ADDED:])
    assert entry.value == raw.value
    rest = iter(raw.headers)
    assert all(header in rest for header in headers), f"{raw}: {headers}"
    assert int(told["timer-released-ms"] or b"") >= int(told["timer-deliver-ms"] or b"")


def whole(raw: Raw, entry: Entry) -> None:
    """Fail unless the record is kept whole, or is too large for the rejected topic. A copy has native headers."""
    reason = [name for name, _ in entry.headers[-3:]]
    assert reason == ["timer-error", "timer-error-detail", "timer-origin"]
    if len(raw.headers) > MAX_HEADERS:
        assert (entry.key, entry.value, len(entry.headers)) == (raw.key, raw.value, 3)
    elif size_of(raw) < REJECTED_BYTES - 2000:
        assert (entry.key, entry.value) == (raw.key, raw.value)
        kept = list(entry.headers[:-3])
        is_copy = "timer-rolls" in dict(kept) and "timer-rolls" not in dict(raw.headers)
        assert is_copy or kept == raw.headers
    else:
        assert size_of(Raw(entry.key, entry.value, list(entry.headers))) <= REJECTED_BYTES


def size_of(raw: Raw) -> int:
    return len(raw.key or b"") + len(raw.value or b"") + sum(len(n) + len(v or b"") for n, v in raw.headers)


def copies(place: TimerWorld) -> Sequence[Sequence[Header]]:
    """Return the headers of the newest copies that the bridge wrote."""
    last = place.kafka.topics[TIMERS].partitions[0].everything()[-500:]
    return [list(entry.headers) for entry in last if entry.transaction is not None and not entry.is_marker]


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("piece", range(-(-COUNT // PIECE)))
def test_case_33_each_record_has_exactly_one_fate(piece: int) -> None:
    rng = Random(f"{SEED}/{piece}")
    place, requests, sent = world(), RawRequests(rng, REACH_MS, LARGE), dict[int, Raw]()
    while len(sent) < PIECE:
        forged = copies(place)
        for _ in range(min(rng.choice((1, 10, 200, 1000)), PIECE - len(sent))):
            raw = requests.draw(place.now_ms, forged)
            entry = place.kafka.produce(TIMERS, raw.value, key=raw.key, headers=raw.headers)
            sent[entry.offset] = raw
        place.pass_time(ms=rng.choice((1, 50, 300, 1000)))
        if rng.random() < 0.05:
            place.restart(lose_disk=rng.random() < 0.5)
    place.pass_time(ms=200)
    place.pass_time(ms=0)
    check(sent, Fates(place), sum(place.bridge.bridge.pending.values()))
    place.pass_time(ms=60_000)  # a target that refuses records is tried once a second
    found = check(sent, Fates(place), sum(place.bridge.bridge.pending.values()))
    assert found["pending"] == 0
    for fate in ("delivered", "ended", "answered", "refused bad-header", "refused not-ours", "parked unknown-topic"):
        assert found[fate] > PIECE // 1000, found
    if "FUZZ" in os.environ:
        print(found)  # noqa: T201
