"""The timer store: body log, TimerLog and wheel, after RocketMQ's RIP-43. The caller passes in all times."""
