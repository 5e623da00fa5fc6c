"""Which timer leaves next, and which has to wait.

    release_queue     the whole order of release: begin here. It owns the next three
    row_queue         rows of open ticks, in order
    out_of_order      rows that K has passed already
    target_backlog    rows whose target is paused, limited or unavailable; each target: waiting_target
    release_policy    which rows leave in one turn, if targets are limited
    backlog_summary   questions of operators about what waits
    loaded_ticks      the ticks that one turn loads
    pending_timers    what the queue needs of an engine; wheel_timers: the same of the wheel, with the rows of its ticks
    wake_time         the wake-up time (`visit_ms`) of a request
    pending_keys      which keys are pending, for (C, K, L) and key ranges
    pending_log       the pending units in the order of the log, for searches

K is the last settled key, C the next offset to read, L the lowest pending offset (schemas.progress).
"""
