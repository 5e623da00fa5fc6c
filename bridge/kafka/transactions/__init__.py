"""Kafka transactions, independent of each other, and records that are refused.

sink.py              ConfluentSink: gives each transaction a free producer, and decides what becomes of one that fails
producer_slot.py     one producer, replaced when it breaks, and its thread
producer.py          TransactionalProducer: the calls of one transaction
record_sender.py     its records: sent, not acknowledged, failed, and their size
rejection_finder.py  records that made it fail           topic_probe.py    questions about topics
"""
