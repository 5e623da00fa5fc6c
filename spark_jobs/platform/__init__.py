"""Shared by all jobs: session, tables, packaging, exit codes."""
