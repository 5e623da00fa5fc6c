"""An application: reminds customers of orders that are not paid."""

from kafka_timer import TimerProducer

REMINDERS = "reminders"


def order_placed(timers: TimerProducer, order: str, *, remind_after: str = "24h") -> None:
    """Remind the customer later."""
    timers.schedule(REMINDERS, f"order {order} is not paid", key=order, delay=remind_after, id=f"reminder-{order}")


def order_paid(timers: TimerProducer, order: str) -> None:
    """Cancel the reminder."""
    timers.cancel(f"reminder-{order}")
