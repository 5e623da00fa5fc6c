"""Removed: a former import path."""

raise ImportError("bridge.testing.fakes: removed; import bridge.testing")
