"""What goes over the wire and into tables: headers, receipts, rows. Pure: no input, no output.

Except for two that bridge and audit share and that read files: `kafka_table` (settings) and `jars`.
"""
