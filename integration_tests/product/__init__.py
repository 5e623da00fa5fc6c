"""Docs, packages, containers and chaos."""
