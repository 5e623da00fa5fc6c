"""RocketMQ as the peer of the benchmarks."""
