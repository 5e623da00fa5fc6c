"""Tune Python's collector of cyclic garbage for batches of records.

A record is a list and a tuple for each header. They go with their batch and are in no cycle.

threshold 700 (Python's)      -> each batch of 5,000 is scanned dozens of times: a third of a request's cost
threshold 100,000             -> a batch stays below it; cycles are still found, a little later
"""

import gc

_THRESHOLD = 100_000
"""Containers: more than a batch makes. It bounds what cycles hold until they are found."""


def tune_gc() -> None:
    """Set the threshold for the whole process, and never scan what exists now. Call it once, after all imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
