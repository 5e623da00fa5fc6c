"""A single-node Kafka for development and tests."""
