"""What a store's folders and files are called, beside its checkpoint (`timer.format.checkpoint.NAME`)."""

UNITS, IDS, BODIES, WHEEL = "timer", "ids", "body", "wheel"
