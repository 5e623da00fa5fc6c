"""The outcome of each request: evidence, classes, verdicts."""
