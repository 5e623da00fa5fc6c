"""`timer-bridge run --workers N`: a supervisor and N bridges, each a process and a member of the group of its own."""
