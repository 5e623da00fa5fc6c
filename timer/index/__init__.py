"""Indexes in memory over the live timers."""
