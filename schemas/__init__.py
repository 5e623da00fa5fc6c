"""Formats of records and tables: headers, receipts, rows. Pure: no input, no output.

Two modules that bridge and audit share read files: `kafka_settings` and `maven_jars`.
"""
