"""Old path of `bridge.testing.TimerWorld`, kept for one release."""

from bridge.testing.timer_world import TimerWorld as TimerWorld
