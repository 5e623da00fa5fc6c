"""Read and verify the store of a stopped bridge."""
