"""Formats of records and tables: headers, receipts, rows. No I/O.

Exceptions: `kafka_settings` and `maven_jars`, which bridge and audit share, read files.
"""
