"""Kafka transactions: two producers in order, rejections, at-least-once deliveries."""
