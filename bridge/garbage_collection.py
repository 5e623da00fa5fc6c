"""The collector of cyclic garbage, set for batches of records.

a record read: a list and a tuple for each header, gone with its batch, none of it in a cycle
threshold 700 (Python's)      -> each batch of 5,000 is walked through dozens of times: a third of a request's cost
threshold 100,000             -> a batch comes and goes below it; cycles are still found, a little later
"""

import gc

_CONTAINERS = 100_000
"""More than a batch makes; what a cycle may hold until it is found is bounded by it."""


def tune_gc() -> None:
    """For the whole process, once, when all is imported: what stands by then is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_CONTAINERS, *gc.get_threshold()[1:])
