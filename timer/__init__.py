"""The timer store: body log, TimerLog and wheel, after RocketMQ's RIP-43. It is given time, it never takes it."""
