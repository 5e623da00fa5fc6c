"""Spark jobs that audit what the bridge did, and fill in what is missing."""
