"""Chaos and soak: hurt a bridge under load."""
