"""The Spark jobs on a real broker."""
