"""Kafka's default partitioner: kafka_timer.murmur2."""

from kafka_timer.murmur2 import *  # noqa: F403
