"""Chaos and soak tests: a bridge under load and faults."""
