"""For the people who run it: a REST API and a page, beside the probes of bridge.web; on any instance, for all of them.

access.py      who may: tokens, sessions, passes to neighbours        audit.py       who did what
api.py         the operations of /api/v1, each a row of a table       openapi.py     the same for machines
answers.py     what they tell                                         questions.py   what they are asked
neighbours.py  reads are put to the owner of each partition           fetching.py    by a client that none can hold
machine.py     disk and memory
actions.py     what changes something, each a row of a table          requests.py    sent, and what came of it
rejected.py    what was parked, and why                               site.py        the page
marks.py       which of it was sent again, read once
counted.py     what a selection came to, as a token                   service.py     the API over HTTP
operations.py  what an operation is, and how it is called             rendering.py   templates, escaped
kafka_side.py  what is asked of Kafka: a port                         real_kafka.py  over bridge.confluent
wiring.py      all of it, put together for a running bridge           testing.py     and over a Kafka in memory

Reads come from the turn's thread (bridge.desk), from Kafka or from neighbours. Every change is a request on the timer
topic, so it does not matter which instance is asked, and nothing goes around the log.
"""
