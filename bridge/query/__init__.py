"""Questions about pending timers, answered by the loop's thread."""
