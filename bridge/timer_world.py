"""Removed: a former import path."""

raise ImportError("bridge.timer_world: removed; import TimerWorld from bridge.testing")
