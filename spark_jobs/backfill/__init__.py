"""Deliver missing timers."""
