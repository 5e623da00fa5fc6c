"""Kafka transactions, independent of each other, and records that are refused.

sink.py              ConfluentSink: transactions, each by a free ProducerSlot, and what becomes of those that fail
producer.py          TransactionalProducer: the calls of one transaction
record_sender.py     its records: sent, not acknowledged, failed, and their size
rejection_finder.py  records that made it fail; TopicProbe: questions about topics
"""
