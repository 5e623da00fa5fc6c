"""Names of a store's folders and files, except the checkpoint (`timer.format.checkpoint.NAME`)."""

UNITS, IDS, BODIES, WHEEL = "timer", "ids", "body", "wheel"
DATABASE = "rocksdb"
