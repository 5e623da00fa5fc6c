"""Docs, packages, containers, benchmarks and chaos."""
