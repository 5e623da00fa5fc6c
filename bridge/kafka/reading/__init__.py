"""Reads outside the consumer group.

history.py           ConfluentHistory: progress, offsets, requests and journal
partition_reader.py  reads committed records of one partition, with a consumer of its own
control_reader.py    ConfluentControl: the control topic from its beginning
"""
