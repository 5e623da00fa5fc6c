"""Settings of a start, drawn from a seed: small numbers of everything, so that every edge is near."""

from dataclasses import replace
from random import Random

from bridge.partition.options import Policy, StoreOptions, TurnOptions
from bridge.tests.simulation.oracle import JOURNAL, JOURNALS, RECEIPTS, REJECTED
from bridge.tests.simulation.request_generator import MORE_TIMERS, ORDERS
from schemas.rules import Rules
from timer.options import Engine

OWN_TOPICS = frozenset({*JOURNALS.keys(), *JOURNALS.values(), REJECTED, RECEIPTS})
SKEW_MS = 20
MIN_FREE_BYTES = 1000


def with_engine(options: TurnOptions, engine: Engine) -> TurnOptions:
    return replace(options, store=replace(options.store, engine=engine))


def draw_options(rng: Random, reach_ms: int, *, limited: bool) -> TurnOptions:
    """Small numbers of everything, so that every edge is near. Each timer topic has its own, and perhaps limits."""
    main, more = (_draw_options(rng, reach_ms) for _ in JOURNALS)
    if limited:
        main, more = _draw_limits(rng, main), _draw_limits(rng, more)
    return replace(main, topics={MORE_TIMERS: replace(more, journal_topic=JOURNALS[MORE_TIMERS])})


def _draw_limits(rng: Random, options: TurnOptions) -> TurnOptions:
    return replace(
        options,
        policy=rng.choice((Policy(), Policy(deny=("b*",)), Policy(allow=("o*", "s*")))),
        max_pending=rng.choice((None, None, 2, 8)),
        max_requests_per_s=rng.choice((None, None, 30, 300)),
        targets=rng.choice(({}, {ORDERS: _draw_limit(rng)}, {"b*": _draw_limit(rng), "*": _draw_limit(rng)})),
    )


def _draw_limit(rng: Random) -> float:
    limit = rng.choice((3, 20, 100))
    rng.choice((0, 0, 1)), rng.choice((0, 1))  # unused; old seeds keep their histories
    return limit


def _draw_options(rng: Random, reach_ms: int) -> TurnOptions:
    rules = draw_rules(rng, reach_ms)
    tick_ms = rng.choice((1, 7, 10, 100))
    lap_ms = min(rules.max_delay_ms, rules.roll_window_ms) * rng.choice((1, 1, 2, 10)) + 2 * tick_ms
    return TurnOptions(
        rules=rules,
        store=StoreOptions(
            tick_ms=tick_ms,
            slots=lap_ms // tick_ms + 2,
            segment_bytes=rng.choice((68, 200, 1000, 1 << 16)),
            checkpoint_interval_ms=rng.choice((0, 20, 100, 500)),
            compact_below=rng.choice((0.0, 0.3, 0.6)),
            compact_ahead_ms=0,
        ),
        rejected_topic=REJECTED,
        journal_topic=JOURNAL,
        receipts_topic=RECEIPTS,
        receipts=rng.choice(("none", "none", "outcomes", "all")),
        max_message_bytes=rng.choice((1 << 20, 1 << 20, 700)),
        max_poll_records=rng.choice((1, 2, 5, 20)),
        max_due_records=rng.choice((1, 2, 5, 20)),
        max_due_bytes=rng.choice((1, 300, 1 << 20)),
        commit_interval_ms=rng.choice((0, 20, 100, 500)),
        min_free_bytes=MIN_FREE_BYTES,
        max_wait_ms=rng.choice((20, 100, 300)),
        prepare_from=rng.choice((0, 2, 10, 1000)),
        clock_skew_margin_ms=2 * SKEW_MS,
    )


def draw_rules(rng: Random, reach_ms: int) -> Rules:
    """Most requests lie up to `reach_ms` ahead, some further."""
    return Rules(
        max_delay_ms=reach_ms * rng.choice((2, 3)) // 2,
        roll_window_ms=reach_ms // rng.choice((1, 3, 5, 8)),
        levels_ms=rng.choice(((10, 100, 400), (reach_ms // 2, reach_ms, 50), (1,))),
        own_topics=OWN_TOPICS,
    )
