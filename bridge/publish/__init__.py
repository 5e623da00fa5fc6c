"""Step 3 of a message's way: build the records of a release and commit them in one transaction."""
