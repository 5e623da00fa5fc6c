"""Kafka for the jobs: offsets, committed progress, transactions, security."""
