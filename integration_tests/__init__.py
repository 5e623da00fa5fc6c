"""Tests against real brokers: whatever one process alone cannot show."""
