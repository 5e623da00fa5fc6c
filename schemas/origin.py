"""Origins and partitions of timer topics: kafka_timer.origin."""

from kafka_timer.origin import *  # noqa: F403
