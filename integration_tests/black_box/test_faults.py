"""Kills, lost disks, cancels in a backlog and replayed copies: each timer exactly once, none early.

KILLS=50 pytest integration_tests/black_box/test_faults.py       kills under load; the default is 2
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from .history import History, Timer, headers_of, now_ms
from .processes import until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("KILLS", "2"))
LIFE_S = (0.5, 2.5)
HOUR_MS = 3_600_000
LONG_BACKLOG = 3000
"""More requests than a bridge reads in one turn."""
ALONE, DIRECTORY = "from Kafka alone", "from its directory"


@pytest.mark.parametrize(
    "engines", [("wheel",), ("rocksdb",), pytest.param(("wheel", "rocksdb"), marks=pytest.mark.slow)], ids="-then-".join
)
def test_case_22_and_23_a_bridge_is_killed_under_load_and_loses_its_disk(
    make_history: Callable[..., History], engines: tuple[str, ...]
) -> None:
    """engines: the engine of each start, in turn. A start with another engine rebuilds the store."""
    history, engine, rng = make_history(2, "--roll-window", "1s"), cycle(engines), random.Random(11)
    bridge = history.bridge("a")
    bridge.start("--engine", next(engine))
    with history.load():
        for kill in range(KILLS):
            time.sleep(rng.uniform(*LIFE_S))
            bridge.kill()
            if is_lost := kill == KILLS // 2:
                bridge.lose_disk()
            bridge.start("--engine", next(engine))
            assert not is_lost or len(bridge.recovered(ALONE)) == history.partitions
    history.demand_each_once()
    assert ["cancelled"] in history.outcomes().values()
    bridge.verify()


def until_due(timers: list[Timer]) -> None:
    until(lambda: now_ms() > max(timer.due_ms for timer in timers), "timers are due")


def test_cancels_wait_in_a_backlog_while_no_bridge_runs(make_history: Callable[..., History]) -> None:
    history = make_history(2)
    bridge = history.bridge("a")
    bridge.start()
    for is_lost in (False, True):
        stored = history.schedule(30, 3000, 4000, ids=True)
        history.until_read()
        if is_lost:
            bridge.kill()
            bridge.lose_disk()
        else:
            bridge.stop()
        pending = history.pending()
        assert pending
        unread = history.schedule(30, -1000, 1000, ids=True)
        history.schedule(LONG_BACKLOG, 0, 2000)
        cancelled = history.cancel(pending[:20])
        history.cancel(unread[:20])
        until_due(stored)
        assert not bridge.is_up
        bridge.start()
        assert len(bridge.recovered(ALONE if is_lost else DIRECTORY)) == history.partitions
        history.until_answered(history.cancels)
        outcomes = history.outcomes()
        assert [outcomes[id_] for id_ in cancelled] == [["cancelled"]] * len(cancelled)
    history.demand_each_once()


def test_copies_of_rolled_timers_are_replayed(make_history: Callable[..., History]) -> None:
    history = make_history(2, "--roll-window", "2s")
    bridge = history.bridge("a")
    bridge.start()
    history.schedule(20, 4000, 7000)
    far = history.schedule(40, HOUR_MS, HOUR_MS, ids=True)
    values = {timer.value for timer in far}

    def copies() -> dict[bytes, Any]:
        """Return the latest copy of each timer on the timer topic, by its value."""
        there = (each for each in history.read(history.requests) if "timer-rolls" in headers_of(each))
        return {each.value(): each for each in there if each.value() in values}

    replayed: Counter[bytes] = Counter()

    def replay() -> None:
        """Send each copy again, unchanged, to its partition, and wait until each is rejected whole."""
        found = copies()
        for each in found.values():
            history.send(each.value(), each.headers(), key=each.key(), partition=each.partition())
        history.flush()
        replayed.update(found.keys())
        until(lambda: Counter(each.value() for each in history.read(history.rejected)) == replayed, "rejected copies")

    until(lambda: copies().keys() == values, "a copy of each timer")
    replay()
    history.until_answered(history.cancel(far[:15]))
    bridge.kill()
    bridge.lose_disk()
    bridge.start()
    assert len(bridge.recovered(ALONE)) == history.partitions
    assert list(history.outcomes().values()) == [["cancelled"]] * 15
    history.move(far, now_ms() + 1000)
    history.until_delivered(far[15:])
    replay()
    assert history.rejected_codes().keys() == {"not-ours"}
    assert all(int(headers_of(each)["timer-rolls"]) > 0 for each in history.delivered())
    history.demand_each_once()
