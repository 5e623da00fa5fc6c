"""Old path of `bridge.testing`, kept for one release."""

from bridge.testing.fake_kafka import *  # noqa: F403
