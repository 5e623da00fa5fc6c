"""RocketMQ's delay levels: kafka_timer.levels."""

from kafka_timer.levels import *  # noqa: F403
