"""The REST API of a running bridge, /api/v1, on any instance for all of them.

Reads come from the loop's thread (bridge.query), from Kafka, or from peers. A change is a request on the timer topic.
Therefore any instance may be asked, and no change goes around the log.
"""
