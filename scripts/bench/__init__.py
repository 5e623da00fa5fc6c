"""Benchmarks, beside plain transactions and RocketMQ."""
