"""Benchmarks, beside a copy loop and RocketMQ."""
