"""Implement the ports over librdkafka. In `bridge`, only this package and the redrive import confluent_kafka.

consumer.py        ConfluentSource: member of the consumer group
history.py         ConfluentHistory: reads outside the group; readers.py has ConfluentControl and the reads themselves
transactions/      ConfluentSink: transactional producers
group.py           ConfluentGroup: members of the group and their HTTP addresses; those that died; our own member id
topics.py          ConfluentTopics: describes, creates and grows topics; OwnTopics prepares the bridge's
                   findings: tries rights and topics for `check-config --connect`
client_config.py   configuration of every client
retry.py           waits for brokers, calls that may block for ever      errors.py   meaning of librdkafka's errors
"""

from bridge.kafka.consumer import ConfluentSource as ConfluentSource
from bridge.kafka.group import ConfluentGroup as ConfluentGroup
from bridge.kafka.history import ConfluentHistory as ConfluentHistory
from bridge.kafka.readers import ConfluentControl as ConfluentControl
from bridge.kafka.retry import Retrier as Retrier
from bridge.kafka.topics import ConfluentTopics as ConfluentTopics
from bridge.kafka.transactions.sink import ConfluentSink as ConfluentSink
