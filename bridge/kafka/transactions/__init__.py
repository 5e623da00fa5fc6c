"""Kafka transactions, independent of each other, and records that are refused.

sink.py              ConfluentSink: gives each transaction a free producer
submitted.py         InFlightTransaction: one of them, from `submit` to its outcome
producer_slot.py     one producer, replaced when it breaks, and its thread
producer.py          TransactionalProducer: the calls of one transaction
contents.py          contents of a transaction, and why it failed
record_sender.py     records that are sent and not acknowledged, and their size
failure_handler.py   what becomes of a transaction that fails
rejection_finder.py  records that made it fail           topic_probe.py    questions about topics
"""
