"""Import timers from files."""
