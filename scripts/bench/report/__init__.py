"""The page of the benchmarks, from their results."""
