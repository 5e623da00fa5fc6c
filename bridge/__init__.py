"""The loop between Kafka and the timer store, and the commands around it."""
