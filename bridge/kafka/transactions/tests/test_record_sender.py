"""Waits for acknowledgements, with a fake producer and clock."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from bridge.kafka.retry import Retrier
from bridge.kafka.transactions.record_sender import await_acknowledgements
from bridge.observe.status import LIVE_WITHIN_S, Status


class Slow:
    """A producer whose records are acknowledged at `at_s`; `look` is called each second until then."""

    def __init__(self, at_s: float, look: Callable[[], None]) -> None:
        self.now_s = 0.0
        self._at_s = at_s
        self._look = look

    def flush(self, timeout_s: float) -> int:
        before_s, self.now_s = self.now_s, self.now_s + timeout_s
        if int(before_s) != int(self.now_s):
            self._look()
        return int(self.now_s < self._at_s)


@pytest.mark.parametrize(("takes_s", "is_told"), [(LIVE_WITHIN_S * 3, True), (3.0, False)])
def test_during_a_long_wait_for_acknowledgements_the_bridge_is_live_but_not_ready(
    takes_s: float,
    is_told: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quota may make each transaction last for minutes, so a restart would not help."""
    seen: list[tuple[str, str]] = []
    producer: Any = Slow(takes_s, lambda: seen.append((status.live().reason, status.ready().reason)))
    status = Status(lambda: producer.now_s)
    monkeypatch.setattr(time, "monotonic", lambda: producer.now_s)
    await_acknowledgements(producer, Retrier(status=status), lambda: False, lambda _: None)
    assert {live for live, _ in seen} == {""}
    assert ("waiting for the broker" in {ready for _, ready in seen}) == is_told
    assert [ready for _, ready in seen[10:]] == ["waiting for the broker"] * len(seen[10:])
    assert status.ready().reason != "waiting for the broker"


def test_on_stall_is_called_early_and_then_each_time_without_an_acknowledgement_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stalling(Slow):
        """Acknowledges one record after 2 s, the other after 12 s."""

        def flush(self, timeout_s: float) -> int:
            return super().flush(timeout_s) and 1 + (self.now_s < 2)

    producer: Any = Stalling(12.0, lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: producer.now_s)
    early, late = list[float](), list[float]()

    def note(is_early: bool) -> None:  # noqa: FBT001
        (early if is_early else late).append(round(producer.now_s))

    await_acknowledgements(producer, Retrier(), lambda: False, note)
    assert (early, late) == ([0, 2], [5, 8, 11])
