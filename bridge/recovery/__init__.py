"""Open a partition's store at a start: from the local disk, the journal and the timer topic."""
