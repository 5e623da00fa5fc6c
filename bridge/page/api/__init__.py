"""The REST API of a running bridge, /api/v1. Any instance answers for the whole group.

Reads come from the loop's thread (bridge.query), from Kafka, or from peers. A change is a request on the timer topic,
so it takes the same way as any other request.
"""
