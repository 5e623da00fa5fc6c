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

from bridge.confluent.control import ConfluentControl as ConfluentControl
from bridge.confluent.group import ConfluentGroup as ConfluentGroup
from bridge.confluent.history import ConfluentHistory as ConfluentHistory
from bridge.confluent.outbox import ConfluentOutbox as ConfluentOutbox
from bridge.confluent.redriving import ConfluentRedrive as ConfluentRedrive
from bridge.confluent.sink import ConfluentSink as ConfluentSink
from bridge.confluent.source import ConfluentSource as ConfluentSource
from bridge.confluent.topics import ConfluentTopics as ConfluentTopics
from bridge.confluent.waiting import Patience as Patience
