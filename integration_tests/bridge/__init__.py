"""Features of a running bridge."""
