"""The bridge and Kafka: ports, ownership, brokers that fail."""
