"""Byte formats of the store's files."""
