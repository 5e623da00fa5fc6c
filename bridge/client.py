"""Removed: a former import path."""

raise ImportError("bridge.client: removed; import kafka_timer")
