"""Indexes in memory over the pending timers."""
