"""Implement the ports over librdkafka. In `bridge`, only this package and the redrive import confluent_kafka.

consumer.py        ConfluentSource: member of the consumer group
reading/           ConfluentHistory, ConfluentControl: reads outside the group
transactions/      ConfluentSink: two transactional producers in turn
group_members.py   ConfluentGroup: members of the group and their HTTP addresses
topic_admin.py     ConfluentTopics: describes, creates and grows topics

client_config.py   configuration of every client     group_metadata.py  member id and generation
retry.py           waits for brokers                  errors.py          meaning of librdkafka's errors
worker_thread.py   thread for calls that block
"""

from bridge.kafka.consumer import ConfluentSource as ConfluentSource
from bridge.kafka.group import ConfluentGroup as ConfluentGroup
from bridge.kafka.history import ConfluentHistory as ConfluentHistory
from bridge.kafka.readers import ConfluentControl as ConfluentControl
from bridge.kafka.retry import Retrier as Retrier
from bridge.kafka.topics import ConfluentTopics as ConfluentTopics
from bridge.kafka.transactions.sink import ConfluentSink as ConfluentSink
