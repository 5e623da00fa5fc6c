"""What became of each request: evidence, classes, verdicts."""
