"""Removed: a former import path."""

raise ImportError("bridge.fake_kafka: removed; import bridge.testing.fake_kafka")
