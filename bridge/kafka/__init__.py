"""The ports over librdkafka. confluent_kafka is imported in this package and nowhere else in `bridge`.

ConfluentSource    a member of the group; an assigned shard yields nothing until `start` says from where
ConfluentHistory   a reader outside the group: what stands in Kafka, and nothing that may yet be undone
ConfluentSink      two transactional producers in turn; says which records the broker will never take
ConfluentOutbox    what the client sends by, without transactions
ConfluentRedrive   sends again what was parked, each record once
ConfluentGroup     who has which partition, and where each member is asked
ConfluentControl   reads the control topic from its beginning
ConfluentTopics    makes what is missing at start, and tells what topics are like

clients.py    what every client is told      waiting.py   passing faults are waited out, with few words
producer.py   one transaction                culprits.py  who made it fail
sink.py       one behind the other           worker.py    threads for calls that block
ahead.py      deliveries of at-least-once    fence.py     whose generation commits
pace.py       how soon a poll returns        timely.py    calls that are to end in time
sending.py    what both ways of sending share
"""

from bridge.kafka.consumer import ConfluentSource as ConfluentSource
from bridge.kafka.control_reader import ConfluentControl as ConfluentControl
from bridge.kafka.group_members import ConfluentGroup as ConfluentGroup
from bridge.kafka.log_reader import ConfluentHistory as ConfluentHistory
from bridge.kafka.redrive import ConfluentRedrive as ConfluentRedrive
from bridge.kafka.request_sender import ConfluentOutbox as ConfluentOutbox
from bridge.kafka.retry import Patience as Patience
from bridge.kafka.topic_admin import ConfluentTopics as ConfluentTopics
from bridge.kafka.transactions.pipeline import ConfluentSink as ConfluentSink
