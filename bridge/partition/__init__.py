"""Step 1 of a message's way: decide what becomes of each record that was read from a timer topic."""
