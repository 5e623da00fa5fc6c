"""Which timer leaves next, and which has to wait.

    release_queue     the whole order of release: begin here. It owns the next two
    blocked_targets   targets that are paused, limited or unavailable, and their timers
    queues            rows of open ticks in order, and rows that K has passed already
    release_policy    the wake-up time (`visit_ms`) of a request; how many rows leave in one turn
    pending_timers    which keys are pending, by (C, K, L) and key ranges; what the queue needs of an engine

K is the last settled key, C the next offset to read, L the lowest pending offset (schemas.progress).
"""
