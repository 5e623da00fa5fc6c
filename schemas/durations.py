"""Durations as text: kafka_timer.durations."""

from kafka_timer.durations import *  # noqa: F403
