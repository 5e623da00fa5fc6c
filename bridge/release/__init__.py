"""Step 2 of a message's way: choose the due timers of a partition and draft what the next transaction holds."""
