"""Engine `rocksdb`: the pending timers of a store in a RocksDB database, as in RocketMQ's RIP-82."""
