"""Status, logs and metrics."""
